"""Agents on machines: started where they belong, watched, and ended with the run.

Knows ssh, Slurm, Kubernetes and Ray, and how an agent is told its ticket.
Does not know what agents do: no message of a run passes here.
"""
