"""A stage's state on its way: to a joiner, to a checkpoint, to the log.

Knows named tensors and threads that carry them.
Does not know when a copy is wanted.
"""
