"""Control messages between launcher, agent and workers, as checked JSON.

Knows every message and its fields, and one end of a connection.
Does not know what a message leads to; tensors never travel here.
"""
