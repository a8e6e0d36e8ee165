"""How good a plan is at best, and whether it is sound: bounds, checks, certificates.

Knows plans and problems, and for small cases an exact solver.
Does not know how plans are made.
"""
