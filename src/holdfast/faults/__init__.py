"""Faults made on purpose: as data with a text form, at random, and carried out.

Knows points of a step, kinds of faults and one seed.
Does not know how a run recovers.
"""
