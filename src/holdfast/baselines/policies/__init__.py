"""Ways to train on through failures, as rules for a simulator: ours and the published ones.

Knows the step time each reaches with the workers that are left, and what a change costs it.
Does not know when failures come, or how time is counted.
"""
