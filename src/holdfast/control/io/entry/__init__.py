"""The way in: the port, strangers, who is let in, and whose each connection is then.

Knows who has proven to belong to the run, and whether there is a place for it.
Does not know what they say once they are in.
"""
