"""Measurements on request, and devices that are only emulated.

Knows clocks and small tensors.
Does not know what is concluded from them.
"""
