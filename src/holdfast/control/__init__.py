"""The side that decides: who takes part, who holds what, what happens next.

Knows members, messages and plans, as data; pure but for ``io``.
Does not know tensors, and loads no torch.
"""
