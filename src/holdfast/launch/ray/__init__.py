"""Agents on the nodes of a Ray cluster, each held by an actor.

Knows Ray's placement groups and actors; Ray is loaded only if it is asked for.
Does not know who is alive: the run notices a lost node itself, long before Ray does.
"""
