"""Whether the rows of an episode in a source are consecutive steps, as numbers that add over parts of a log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from valuefit.data.gaps import Filling
from valuefit.data.validation import ROWS_PER_CHECK
from valuefit.typing import Array

ROUNDING = 1e-6  # relative, of increments: times are often computed in floating point


@dataclass(frozen=True)
class Spread:
    """Count, mean and root mean squared deviation of some rewards."""

    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    @classmethod
    def of(cls, rewards: Array) -> Spread:
        scale = float(np.abs(rewards).max(initial=0.0)) or 1.0  # squares could overflow
        scaled = rewards / scale
        mean = float(scaled.mean()) if len(scaled) else 0.0
        scaled -= mean
        np.square(scaled, out=scaled)
        return cls(len(rewards), scale * mean, scale * math.sqrt(scaled.mean()) if len(scaled) else 0.0)

    def __add__(self, other: Spread) -> Spread:
        count = self.count + other.count
        own, others = self.count / max(count, 1), other.count / max(count, 1)
        parts = (
            math.sqrt(own) * self.deviation,
            math.sqrt(others) * other.deviation,
            math.sqrt(own * others) * (self.mean - other.mean),
        )
        return Spread(count, own * self.mean + others * other.mean, math.hypot(*parts))

    def share(self, some: Spread) -> float:
        """The share of the squared deviations that some of these rewards hold; 0 where all rewards are equal."""
        own = math.hypot(some.deviation, some.mean - self.mean)
        if not own or not self.deviation:
            return 0.0
        return min(some.count / self.count * (own / self.deviation) ** 2, 1.0)


@dataclass(frozen=True)
class Continuity:
    """Counts of a source. The default is that of a source of which nothing is known.

    steps: of the source. pairs: of consecutive rows of an episode, where something says whether they are consecutive
    steps. jumps: pairs whose step numbers, or times, are further apart than the others. detours: pairs where the next
    observation of the first is not the observation of the second. apart: pairs that are either. cut: last steps of
    episodes that were left out, because what follows them is not known. rewards, cut_rewards: of all steps, and of
    those that were left out; they do not compare, because their last digits depend on the parts.
    """

    steps: int = 0
    pairs: int = 0
    jumps: int = 0
    detours: int = 0
    apart: int = 0
    cut: int = 0
    rewards: Spread = field(default_factory=Spread, compare=False)
    cut_rewards: Spread = field(default_factory=Spread, compare=False)

    @property
    def apart_text(self) -> str:
        """How many pairs are not consecutive steps, and how that shows."""
        share = 100 * self.apart / max(self.pairs, 1)
        text = f"{self.apart:,} of {self.pairs:,} pairs of consecutive rows ({share:.2g}%) are not consecutive steps"
        reasons = {
            "their step numbers or times are too far apart": self.jumps,
            "the next observation of the first is not the observation of the second": self.detours,
        }
        shown = "; ".join(f"in {count:,}, {reason}" for reason, count in reasons.items() if count)
        return f"{text} ({shown})" if shown else text

    @property
    def cut_text(self) -> str:
        """How many last steps were left out, and why."""
        share = 100 * self.cut / max(self.steps, 1)
        return (
            f"The last step of {self.cut:,} episodes ({share:.2g}% of the steps, {100 * self.cut_variation:.2g}% of "
            "the variance of the rewards) was left out: it did not terminate and its next observation is missing"
        )

    @property
    def cut_variation(self) -> float:
        """The share of the squared deviations of the rewards from their mean that the left-out steps hold."""
        return self.rewards.share(self.cut_rewards)

    def __add__(self, other: Continuity) -> Continuity:
        return Continuity(
            *(one + another for one, another in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def continuity_of(log: Any, jumps: Array | None, *, next_logged: bool, filling: Filling | None = None) -> Continuity:
    """The counts of a log, incomplete steps included.

    jumps: of each pair of rows (n - 1,), or None without step numbers. next_logged: whether next observations are.
    filling: of its observations.
    """
    inside = ~log.begins[1:]
    known = inside & next_logged & (log.next[:-1] >= 0)
    detours = known.copy()
    detours[known] = log.next[:-1][known] != log.now[1:][known]
    if not log.has_numbered_states:
        pairs = np.flatnonzero(detours)
        detours[pairs] = _differ(log.observations, log.next[:-1][pairs], log.now[1:][pairs], filling)
    both = detours if jumps is None else detours | (jumps & inside)
    return Continuity(
        len(log),
        int((known if jumps is None else inside).sum()),
        0 if jumps is None else int((jumps & inside).sum()),
        int(detours.sum()),
        int(both.sum()),
        rewards=Spread.of(log.reward),
    )


def _differ(observations: Array, one: Array, other: Array, filling: Filling | None) -> Array:
    """Whether these rows of observations differ by more than rounding, in entries that neither of them misses."""
    differ = np.zeros(len(one), bool)
    for start in range(0, len(one), ROWS_PER_CHECK):
        here = slice(start, start + ROWS_PER_CHECK)
        pair = [observations[rows[here]] for rows in (one, other)]
        pair = pair if filling is None else [filling.raw(rows) for rows in pair]
        a, b = (rows.astype(np.float64).reshape(len(rows), -1) for rows in pair)
        scale = np.fmax.reduce(np.abs([a, b]), axis=(0, 1))  # without those that are missing, which are NaN
        # observations of float32 that were divided or normalised differ by up to 1e-5 of the largest one
        differ[here] = (np.abs(a - b) > 1e-5 * scale).any(axis=1)
    return differ


def find_jumps(step: Array, inside: Array) -> Array:
    """Pairs of rows between which steps are missing, (n - 1,). step: sorted numbers or times. inside: of an episode.

    Where the smallest increment is also the most common one, steps are numbered (or timed regularly), and every larger
    one is a jump. Other times are irregular: a jump is far above their median.
    """
    whole = step.dtype.kind in "iu"
    # differences of sorted integers are not negative, and exact modulo 2^64
    increments = (step[1:].astype(np.uint64) - step[:-1].astype(np.uint64)) if whole else step[1:] - step[:-1]
    increments = increments.astype(np.float64)
    if not inside.any():
        return np.zeros(len(inside), bool)
    median = float(np.median(increments[inside]))
    relative = np.round(increments / median / ROUNDING) * ROUNDING
    sizes, counts = np.unique(relative[inside], return_counts=True)
    # where steps are numbered, not timed, at least a tenth of the increments are the smallest one
    counter = counts.argmax() == 0 and counts[0] >= 0.1 * counts.sum()
    # where they are timed, ten times the median increment is a gap
    return np.asarray(inside & (relative > (sizes[0] if counter else 10.0)))
