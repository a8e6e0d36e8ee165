"""An update of the parameters: applied, committed, or rolled back, bit for bit.

Knows optimizers, snapshots and inverses.
Does not know peers or lanes.
"""
