"""Slowness found while a job runs, or in the record of one step after the other.

Knows workers, links and machines, and what is usual for each.
Does not know recorded traces as a whole, or any cure.
"""
