"""Around a coordinator that may die: its journal, who knocks at its door, what was before it.

Knows files, ports and signs of life.
Does not know what a successor decides.
"""
