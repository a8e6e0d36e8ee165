"""``holdfast simulate``: its words, what they ask for, and how answers are shown.

Knows flags, files, the terminal, and processes that share a hunt.
Does not know how anything is simulated.
"""
