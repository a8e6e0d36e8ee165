"""What happened in a run, as typed events; every view is a reader of them.

Knows events, files of events and summaries.
Does not know how anything is decided; emitting never stops the training.
"""
