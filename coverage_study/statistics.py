"""What a design's replications show: coverage, length, sizes of the tests, and whether the rule is met."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy.special import betaincinv

Record = dict[str, Any]

SURE = 0.999  # level of the Clopper-Pearson intervals
RIGHT_COVERAGE = (0.93, 0.975)  # of 95% intervals
RIGHT_SIZE = (0.03, 0.07)  # of tests at 5%
TEST_LEVEL = 0.05
ENOUGH_EPISODES = 10  # effective ones, from which the coverage must be right
LEAST_COVERAGE = 0.90  # with fewer, unless there is a warning
ROUNDING = 1e-6  # relative to the truth
LEAST_WARNED = 0.90  # share of logs that count as "a warning"


def proportion_interval(successes: int, trials: int, level: float = SURE) -> tuple[float, float]:
    """Clopper and Pearson's interval of a probability."""
    tail = (1 - level) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return low, high


def covers(record: Record) -> bool:
    """Whether the interval contains the truth, up to rounding: without noise it is a point."""
    (low, high), truth = record["interval"], record["truth"]
    return bool(low - ROUNDING * abs(truth) <= truth <= high + ROUNDING * abs(truth))


def with_interval(records: Sequence[Record]) -> list[Record]:
    """Those that have an interval; others were refused, or have no standard error."""
    return [record for record in records if record.get("interval") is not None]


@dataclass(frozen=True)
class Share:
    """Of trials, how many, with the 99.9% interval of the probability."""

    count: int
    trials: int

    @property
    def value(self) -> float:
        return self.count / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        return proportion_interval(self.count, self.trials)

    def surely_outside(self, low: float, high: float) -> bool:
        """Whether the interval of the probability lies wholly outside these bounds."""
        least, most = self.interval
        return least > high or most < low


@dataclass(frozen=True)
class Summary:
    """Of one design. without_interval, warned: shares of all logs. length, effective_episodes: means.

    level: the median verdict. sizes: how often each test had a raw p-value below 5%. seconds: mean time of `evaluate`.
    """

    replications: int
    coverage: Share
    without_interval: float
    warned: float
    length: float
    effective_episodes: float
    level: str
    sizes: dict[str, Share]
    seconds: float

    @property
    def met(self) -> bool:
        """The rule: right coverage from ten effective episodes; with fewer at least 90%, or a warning."""
        if self.effective_episodes >= ENOUGH_EPISODES:
            return not self.coverage.surely_outside(*RIGHT_COVERAGE)
        return self.warned >= LEAST_WARNED or not self.coverage.surely_outside(LEAST_COVERAGE, 1.0)


LEVELS = ("sound", "caution", "do not use")


def summarise(records: Sequence[Record]) -> Summary:
    """The summary of a design's records; at least one must have an interval."""
    found = with_interval(records)
    if not found:
        raise ValueError("No replication has an interval: there is nothing to summarise.")
    places = sorted(LEVELS.index(record.get("level", LEVELS[-1])) for record in records)
    return Summary(
        replications=len(records),
        coverage=Share(sum(map(covers, found)), len(found)),
        without_interval=1 - len(found) / len(records),
        warned=fmean(place > 0 for place in places),
        length=fmean(record["interval"][1] - record["interval"][0] for record in found),
        effective_episodes=fmean(record["effective_episodes"] for record in found),
        level=LEVELS[places[len(places) // 2]],
        sizes=sizes_of_tests(records),
        seconds=fmean(record["seconds"] for record in records),
    )


def sizes_of_tests(records: Sequence[Record]) -> dict[str, Share]:
    """By name of the test, how often its p-value, before Holm's correction, was below 5%."""
    p_values = defaultdict(list)
    for record in records:
        for name, _, _, p_value, *_ in record.get("checks", ()):
            if p_value is not None:
                p_values[name].append(p_value)
    return {name: Share(sum(p < TEST_LEVEL for p in found), len(found)) for name, found in p_values.items()}
