"""Commands that read what a run has left on disk, and write it in forms of others.

Knows the run directory.
Does not know how a run is trained; changes nothing that a run needs.
"""
