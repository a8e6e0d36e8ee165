"""Agents in a Slurm job: the batch script, and srun inside of an allocation.

Knows Slurm's variables, options and signals.
Does not know what is trained: options of the run are passed on as they are.
"""
