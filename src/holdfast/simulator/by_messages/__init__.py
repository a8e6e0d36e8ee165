"""A job in a world, message by message: the real coordinator lives through a whole world.

Knows what of a world happens to machines, and what a job's costs are to simulated workers.
Does not know how a run is simulated, nor other policies.
"""
