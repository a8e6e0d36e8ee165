"""What a Python program asks of Holdfast: train, resume, look at a run, plan, diagnose.

Knows nothing of terminals, flags and signals. The command line is a client of it.
"""
