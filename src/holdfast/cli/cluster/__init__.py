"""Commands for runs over several machines.

Knows tickets, agents and how a machine leaves.
Does not know training: that is up to ``holdfast train``.
"""
