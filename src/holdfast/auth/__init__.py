"""Who is at the other end of a connection, and that every frame is theirs.

Knows the run's secret, proofs and stamps.
Does not know messages, sockets or what a peer may ask for.
"""
