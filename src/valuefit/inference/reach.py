"""What discounted sums of rewards can be: from declared rewards, or from those of the log."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.validation import number
from valuefit.messages import shown
from valuefit.typing import Array

ROUNDING = 1e-6  # relative; a value this close to the end of the range is inside


class RewardRange(NamedTuple):
    """The smallest and the largest reward that is possible."""

    low: float
    high: float

    @classmethod
    def of(cls, given: Any) -> RewardRange | None:
        """The argument `reward_range` of `evaluate`, validated; None if it is None."""
        if given is None:
            return None
        requirement = "it must be the smallest and the largest possible reward, as in (0, 1)"
        if isinstance(given, list | tuple) and len(given) == 2:
            low, high = (number("reward_range", end, requirement, math.isfinite) for end in given)
            if low <= high:
                return cls(low, high)
        raise ValueError(f"reward_range is {shown(given)}; {requirement}.")

    def require(self, least: float, largest: float) -> None:
        """Raise ValueError if the rewards of the log, which are between these, are not all inside."""
        if least < self.low or largest > self.high:
            raise ValueError(
                f"reward_range is ({self.low:g}, {self.high:g}), but the log has rewards from {least:g} to "
                f"{largest:g}. Give a range that contains them, or correct the rewards."
            )


def reward_extremes(reward: Array) -> tuple[float, float]:
    """The smallest and the largest reward of a log."""
    return float(reward.min()), float(reward.max())


class Reach(NamedTuple):
    """The smallest and the largest discounted sum of rewards, and why it is that."""

    low: float
    high: float
    reason: str

    @classmethod
    def of(
        cls, declared: RewardRange | None, logged: tuple[float, float], discount: float, *, ends: bool
    ) -> Reach | None:
        """The sums of rewards within these bounds; None with discount 1, where sums have no bound.

        ends: whether logged steps terminate, so that a sum may stop early; with declared rewards any step may.
        Episode lengths do not narrow the range: another policy may last longer, and truncated episodes go on.
        """
        if discount == 1:
            return None
        least, largest = logged if declared is None else declared
        rewards = f"rewards of {least:.5g}" if least == largest else f"rewards from {least:.5g} to {largest:.5g}"
        low, high = least, largest
        if ends or declared is not None:
            low, high = min(low, 0.0), max(high, 0.0)
        low, high = low / (1 - discount), high / (1 - discount)
        reason = f"{rewards} with discount {discount:g} add up to {low:.5g} to {high:.5g}"
        return cls(low, high, reason)

    def beyond(self, value: Any) -> Any:
        """How far values lie outside, up to rounding; 0 inside."""
        margin = ROUNDING * max(abs(self.low), abs(self.high))
        return np.maximum(np.maximum(self.low - margin - value, value - self.high - margin), 0.0)
