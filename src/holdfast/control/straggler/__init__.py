"""Slow workers and links in this run: found, told, and planned around.

Knows reports, health and what each option would cost.
Does not know how slowness is detected or a plan is made.
"""
