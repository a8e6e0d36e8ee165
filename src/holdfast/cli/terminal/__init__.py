"""The terminal of a running command: views, signals, output that never blocks.

Knows events and file descriptors.
Does not know what the run decides.
"""
