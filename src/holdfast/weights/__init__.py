"""Weights of a whole model: in from files of others, out into formats of others.

Knows names and tensors, files that hold them, and checkpoints.
Does not know layers, stages or training.
"""
