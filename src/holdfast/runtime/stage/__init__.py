"""Layers of a stage: forward, and backward whole or in two parts, with native bits.

Knows tensors, random numbers, buffers and ties.
Does not know schedules, peers or optimizers.
"""
