"""Sums over the holders of a stage that do not depend on order or number.

Knows gradients as flat vectors, buckets and verdicts.
Does not know what becomes of a reduced gradient.
"""
