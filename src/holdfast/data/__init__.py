"""A job's samples: in which order, as which micro-batches, loaded when.

Knows the job, and processes that load for another one.
Does not know stages, workers or schedules.
"""
