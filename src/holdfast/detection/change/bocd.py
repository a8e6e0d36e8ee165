"""Bayesian online change-point detection (Adams & MacKay, 2007): how long has this regime lasted?

Normal values of unknown mean and unknown variance in every regime, hence a Student-t prediction.
Knows no threshold and no cause: it only keeps the posterior of the run length.
"""

import math
from dataclasses import dataclass

import numpy as np

from holdfast.arrays import Floats


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a regime before its first value (normal-inverse-gamma)."""

    hazard: float = 1 / 250  # probability that a regime ends with any one value
    level_spread: float = 0.3  # of the regimes' means about the centre
    noise: float = 0.02  # typical deviation of the values of one regime
    noise_weight: float = 1.0  # alpha: how many pairs of values that belief is worth
    max_run: int = 100  # longer runs are one hypothesis: "at least so long"


class Bocd:
    """The posterior of the run length: the number of values since the last change."""

    def __init__(self, prior: Prior, centre: float = 0.0) -> None:
        self.centre = centre  # where the mean of a new regime is expected
        self._log_stay, self._log_end = math.log1p(-prior.hazard), math.log(prior.hazard)
        self._prior_beta = prior.noise_weight * prior.noise**2
        self._max_run = prior.max_run
        # All that depends on the run length alone, once for all: it is the index.
        run = np.arange(prior.max_run + 1)
        kappa = (prior.noise / prior.level_spread) ** 2 + run
        alpha = prior.noise_weight + run / 2
        log_gamma = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in alpha])
        self._alpha, self._alpha_next = alpha, alpha + 0.5
        self._weight = kappa / (kappa + 1)
        self._share = 1 / (kappa + 1)  # of the newest value in the mean
        self._constant = log_gamma + 0.5 * np.log(self._weight / (2 * math.pi))
        self._log_p: Floats = np.zeros(1)
        self._mean: Floats = np.array([centre])
        self._beta: Floats = np.array([self._prior_beta])
        self._log_beta: Floats = np.log(self._beta)

    def update(self, value: float) -> Floats:
        """The probabilities of 0, 1, 2 ... values since the last change, after this one."""
        n = len(self._log_p)
        away = value - self._mean
        beta = self._beta + (0.5 * self._weight[:n]) * away * away
        log_beta = np.log(beta)
        joint = self._log_p + self._constant[:n]
        joint += self._alpha[:n] * self._log_beta - self._alpha_next[:n] * log_beta
        joint -= joint.max()
        odds = np.exp(joint)
        log_total = math.log(odds.sum())
        self._log_p = np.concatenate(((self._log_end,), joint + (self._log_stay - log_total)))
        self._mean = np.concatenate(((self.centre,), self._mean + self._share[:n] * away))
        self._beta = np.concatenate(((self._prior_beta,), beta))
        self._log_beta = np.concatenate(((math.log(self._prior_beta),), log_beta))
        if n > self._max_run:
            self._merge_longest()
        return np.exp(self._log_p)

    def _merge_longest(self) -> None:
        """The two longest runs become one, and the older values of it fade away."""
        self._log_p[-2] = np.logaddexp(self._log_p[-2], self._log_p[-1])
        self._mean[-2] = self._mean[-1]
        self._beta[-2] = self._beta[-1] * self._alpha[-1] / self._alpha_next[-1]
        self._log_beta[-2] = math.log(self._beta[-2])
        self._log_p, self._mean = self._log_p[:-1], self._mean[:-1]
        self._beta, self._log_beta = self._beta[:-1], self._log_beta[:-1]
