"""A worker's line to the coordinator: messages, heartbeats, what it is busy with.

Knows one connection and its threads.
Does not know what a message leads to.
"""
