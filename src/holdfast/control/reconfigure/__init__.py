"""A reconfiguration carried out: halt, take inventory, decide, proceed.

Knows whose answer is missing, and what everyone is told.
Does not know why somebody was lost, or how a lost state comes back.
"""
