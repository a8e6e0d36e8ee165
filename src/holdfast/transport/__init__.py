"""Tensors from worker to worker, under tags.

Knows tags, epochs and peers.
Does not know pipelines, or what a tensor is for.
"""
