"""What every member has of half-done steps, what died, and what is left to do.

Knows inventories, losses and lineage.
Does not know epochs, connections or what runs afterwards.
"""
