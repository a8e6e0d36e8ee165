"""Runs in virtual time: the real control code among simulated workers, and whole days by intervals.

Knows worlds of machines that fail, what a job costs, what each policy makes of it, and what a
worker would have answered. Seeded: the same seed gives the same answer everywhere.
Does not know torch, sockets, threads or clocks.
"""
