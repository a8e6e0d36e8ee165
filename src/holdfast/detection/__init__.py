"""Who or what is slow, since when, how much and why.

Knows times of operations, transfers and benchmarks.
Does not know what is done about it; no clock, no sockets, no torch.
"""
