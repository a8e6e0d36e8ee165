"""The transport in memory: workers are threads of one process.

Knows mailboxes of this process.
Does not know sockets; makes the same promises as its twin.
"""
