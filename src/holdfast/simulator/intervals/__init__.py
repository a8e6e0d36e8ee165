"""A job in a world, interval by interval: between two events the throughput is that of the plan.

Knows what a change costs, as the policy says it.
Does not know messages, or how a policy finds its plan.
"""
