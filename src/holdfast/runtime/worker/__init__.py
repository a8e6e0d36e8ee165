"""One worker from hello to goodbye: its process or thread, and its link to the coordinator.

Knows messages and what each starts or stops.
Does not know how a step is computed.
"""
