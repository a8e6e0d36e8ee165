"""What is to be done in a step, in which order, and how long that takes.

Knows operations, facts, lanes and costs.
Does not know who plans, who runs it, or torch.
"""
