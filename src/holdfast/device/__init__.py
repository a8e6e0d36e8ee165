"""Where a worker computes: the processor, or one accelerator of any kind that torch knows.

Knows torch only.
Does not know stages, sums or peers.
"""
