"""A stage that nobody holds: rebuilt from the log, or a rollback.

Knows checkpoints, logs and who could replay.
Does not know how a replay computes, or how files look.
"""
