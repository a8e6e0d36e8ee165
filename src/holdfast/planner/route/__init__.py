"""Which holder of each stage runs which micro-batch.

Knows holders, shares and links between them.
Does not know orders and periods.
"""
