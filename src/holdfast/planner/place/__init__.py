"""Which machine runs which worker, and what the loss of a machine would cost.

Knows machines by their names, slots and memory; workers by their pipelines and stages.
Does not know addresses, processes or which machines are reachable; starts nothing.
"""
