"""Operations as integer tables, and list scheduling over them, compiled if it can be.

Knows graphs, durations and priorities.
Does not know policies of search, or why somebody asks.
"""
