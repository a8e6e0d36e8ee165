"""The side that computes: one worker, its stage, its steps.

Knows tensors, the job and the lanes it was given.
Does not know who is slow or lost, or how plans are made.
"""
