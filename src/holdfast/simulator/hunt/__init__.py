"""Random runs against the real control code: what must never happen is looked for all the time.

Knows which runs are worth a look, what must hold in each of them, and how to make a failing one
small.
Does not know how a run is simulated.
"""
