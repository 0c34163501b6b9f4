"""Occupancy weights: the estimate as a weighted sum of the logged rewards, and what the weights say about the log.

The dual part g_w of the adjoint of c'theta gives c'theta = g_w'b (see `adjoints.py`), so step t has the weight
w_t = u_t'g_w / n, with ridge and dual features too. It estimates the discounted number of visits of the policy where
step t was logged, from observations, actions and probabilities alone: rewards do not enter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from valuefit.typing import Array


class OccupancySums(NamedTuple):
    """Sums over steps of the weights, of their absolute values and of their squares. Those of shards add up."""

    total: float
    absolute: float
    squares: float

    @classmethod
    def of(cls, weights: Array) -> OccupancySums:
        return cls(float(weights.sum()), float(np.abs(weights).sum()), float(weights @ weights))

    @property
    def negative_share(self) -> float:
        """The share of the absolute weights in those below 0; a true occupancy has none, this log's noise some."""
        return max(self.absolute - self.total, 0.0) / (2 * self.absolute) if self.absolute else 0.0

    @property
    def effective_steps(self) -> float:
        """The number of equally weighted steps whose mean would be as uncertain."""
        return self.total**2 / self.squares if self.squares else 0.0
