"""Steps of a stage: operations in the order of their lane, then the end of the step.

Knows lanes, routes and what was kept.
Does not know why a plan is as it is, or whether its inputs were logged.
"""
