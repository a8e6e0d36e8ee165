"""Which boundaries between stages to log, and how long a replay takes.

Knows bytes, seconds and budgets.
Does not know files, workers or who is lost.
"""
