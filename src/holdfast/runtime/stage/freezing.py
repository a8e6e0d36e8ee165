"""Parameters that are frozen for some steps: what takes a gradient is a function of the step.

Operations of two steps may alternate on a worker, and a forward that runs again in its backward
must find what it first found: whoever begins one asks for the parameters as they are in its step.
"""

from collections.abc import Mapping

from torch import nn


class Freezing:
    def __init__(self, parameters: Mapping[str, nn.Parameter], steps: Mapping[str, int]) -> None:
        """``steps``: for how many of them each is frozen, by key; 0 if it is not there."""
        self._all = {id(parameter): index for index, parameter in enumerate(parameters.values())}
        given = [(parameter, steps.get(key, 0)) for key, parameter in parameters.items()]
        self._frozen = [(parameter, until) for parameter, until in given if until]

    def slots_in(self, step: int) -> Mapping[int, int]:
        """Freezes what is frozen in ``step``, and nothing else; by ``id``, places of the rest."""
        if not self._frozen:
            return self._all
        trained = dict(self._all)
        for parameter, until in self._frozen:
            parameter.requires_grad_(step >= until)
            if step < until:
                del trained[id(parameter)]
        return trained
