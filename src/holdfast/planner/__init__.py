"""Who holds which stage, who runs what, in which order, and how good that is.

Knows a problem as numbers: shape, costs, memory, links, speeds.
Does not know messages, sockets or torch; the same question has the same answer.
"""
