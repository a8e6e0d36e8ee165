"""What a reconfiguration does next: one table of phases and one pure decision.

Knows inventories, phases and the situation as data.
Does not know how a decision is carried out.
"""
