"""Finished steps, checkpoints and the result of the run.

Knows reports of workers, parts of checkpoints and when one is whole.
Does not know plans, or what is done about a loss.
"""
