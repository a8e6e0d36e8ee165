"""A look at machines before a run: every pair of them, both ways.

Knows what a run needs of machines and links, and how to measure it.
Does not know runs, jobs or agents: its words are its own.
"""
