"""The model is validated between two steps.

Knows forwards, scores and who runs which micro-batch.
Does not know what a validation leads to.
"""
