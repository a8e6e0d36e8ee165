"""The real coordinator in virtual time, with simulated workers, agents, network and disk.

Knows every message of the protocol and what real workers answer to it; runs lanes operation by
operation.
Does not know which runs are worth a look, nor what is a mistake of the coordinator.
"""
