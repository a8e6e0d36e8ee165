"""What the coordinator has decided, where a successor finds it, and who may write there.

Knows records as they are written: JSON, in order, durable before anybody acts on them; and that
the newest generation alone may add to them.
Does not know what a record means, nor how a successor goes on from it.
"""
