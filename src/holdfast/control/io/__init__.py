"""Sockets, processes and files around the coordinator.

Knows connections, the agent and the run directory.
Does not know what a message means: it decides nothing.
"""
