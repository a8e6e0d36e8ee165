"""Which links are slow, whatever the clocks of their ends say.

Knows times under way and on which machine each worker is.
Does not know slow workers, nor what is done about a slow link.
"""
