"""What a micro-batch of text counts for."""

from torch import Tensor

IGNORED = -100
"""A label that no loss looks at: torch's and Hugging Face's."""


def real_tokens(target: Tensor) -> Tensor:
    """For ``Job.weight``: how many labels a loss looks at, all but those that are -100.

    >>> import torch
    >>> int(real_tokens(torch.tensor([[7, 3, -100], [5, -100, -100]])))
    3
    """
    return (target != IGNORED).sum()
