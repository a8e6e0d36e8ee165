"""Who is at the other end of a connection, and that every frame is theirs.

Knows the run's secret, proofs and stamps; certificates, and TLS around a socket.
Does not know messages, or what a peer may ask for.
"""
