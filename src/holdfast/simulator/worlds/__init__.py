"""Worlds: which machines are there when, how fast they are, and with how much notice they go.

Knows traces of real clusters and published rates of failures.
Does not know what a job does about it.
"""
