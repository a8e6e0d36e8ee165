"""The commands that bring agents to machines, and look at machines before.

Knows the launchers and what they are asked for.
Does not know runs.
"""
