"""The transport over TCP.

Knows sockets, sessions and what was not confirmed yet.
Does not know tensors' meaning; makes the same promises as its twin.
"""
