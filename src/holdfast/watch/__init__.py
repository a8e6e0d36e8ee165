"""Runs any torch.distributed job unchanged, and says which rank is slow.

Knows calls of collectives and their times.
Does not know Holdfast's own runs, stages or plans.
"""
