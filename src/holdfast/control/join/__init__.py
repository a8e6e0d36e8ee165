"""Workers that start, join, move, change lanes or are started again.

Knows who may, where to, and from whom they copy.
Does not know how a stage without a holder comes back.
"""
