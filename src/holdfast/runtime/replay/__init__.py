"""A lost stage computed again: lanes whose inputs come from the log.

Knows a checkpoint, the log and a crew that shares the micro-batches.
Does not know who will hold the stage then.
"""
