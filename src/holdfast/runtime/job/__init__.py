"""The user's job on a worker: what it is, what in it would change bits or hide state.

Knows the job's objects and torch's settings.
Does not know stages or schedules.
"""
