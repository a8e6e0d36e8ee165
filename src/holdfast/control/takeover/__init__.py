"""The coordinator may die: what it writes down before it acts, and how another one takes over.

Knows which state nobody else could tell a successor, and who has come back.
Does not know where records are kept, or how a connection is made again.
"""
