"""Which stage each live worker should hold.

Knows speeds, work of stages and what a move costs.
Does not know the order of the work within a step.
"""
