"""What the coordinator knows of a run, each field with one owner.

Knows facts, and answers simple questions about them.
Does not know what to do about any of them.
"""
