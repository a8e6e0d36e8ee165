"""Did a series of numbers change, when, and by how much?

Knows numbers in order.
Does not know whose they are, or what a change means.
"""
