"""Those who start and watch the workers of a machine, and the coordinator's side of them.

Knows processes, and the connections of agents.
Does not know the plan: where a worker is started is decided elsewhere.
"""
