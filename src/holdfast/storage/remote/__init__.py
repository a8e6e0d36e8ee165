"""Checkpoints at an address: immutable objects, and a manifest that is put once.

Knows keys, sizes and digests.
Does not know tensors, nor who asks.
"""
