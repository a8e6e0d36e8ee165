"""What is left to do of a half-done step, by whom, in which order.

Knows lineage: what each fact is made from.
Does not know how the facts became known, or what comes after the step.
"""
