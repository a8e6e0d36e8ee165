"""Who is gone, silent or stuck, by which sign, and what work died with it.

Knows heartbeats, connections, exits and limits.
Does not know what is done about a loss.
"""
