"""Why a recorded job was slow: its operations played again with other times.

Knows a whole trace and what had to wait for what in it.
Does not know files, live runs or any cure.
"""
