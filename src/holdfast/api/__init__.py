"""What a Python program asks of Holdfast: train, resume, look at a run, plan, diagnose.

Knows jobs, settings and the record of a run; the command line is a client of it.
Does not know terminals, flags and signals.
"""
