"""What the coordinator knows of workers: phase, stage, address, what each builds, how fast it is.

Knows facts, and which phase may follow which.
Does not know what the run is at, or what to do about a worker.
"""
