"""Files from machine to machine, over connections of their own.

Knows how a file is asked for, sent in pieces and held against its SHA-256.
Does not know where files lie, or what is in them.
"""
