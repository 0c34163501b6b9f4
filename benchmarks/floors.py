"""The time of `evaluate` with kernel features in multiples of its floor: the rows once, and textbook LSTD on them.

`python -m benchmarks.floors` evaluates two logs on one thread, by ratios and by state-action values, of a policy that
takes every action and of one that takes a single one, in four minutes. Seconds are CPU time in user mode; medians of
three runs after one that is not measured. Targets: at most 1.2 floors by ratios, 2.8 by state-action values, where a
policy that takes a single action costs no more than one that takes all; cross-checks at most a fifth of the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import valuefit as vf
from benchmarks.checks import Seconds, make_log, stage_seconds, user_seconds
from valuefit.threads import limit_threads

ACTIONS = 4
DISCOUNT = 0.95
MAX_FLOORS = {"state": 1.2, "state-action": 2.8}
MAX_CROSS_CHECKS = 0.2  # of the seconds of everything else


@dataclass(frozen=True)
class Case:
    """An evaluation by kernel features with so many weights. policy: None for that of the log."""

    name: str
    steps: int
    weights: int
    values: str
    policy: Callable[[Any], Any] | None

    def shrunk(self) -> Case:
        """A small version, to test the code."""
        return replace(self, steps=3000, weights=40)

    @property
    def settings(self) -> dict[str, Any]:
        actions = ACTIONS if self.values == "state-action" else 1
        features = f"kernel:landmarks={self.weights // actions - 1}"  # and a constant
        return {"features": features, "policy": self.policy, "values": self.values}


def stochastic(observations: Any) -> Any:
    """Probabilities between 0.1 and 0.4, so that the ratios stay near one."""
    weights = 2 + np.tanh(np.asarray(observations))  # a column for each action
    return weights / weights.sum(axis=1, keepdims=True)


def greedy(observations: Any) -> Any:
    """Probability one for the action of the largest column."""
    return np.eye(ACTIONS)[np.argmax(observations, axis=1)]


def cases() -> list[Case]:
    """The evaluations of the targets, and one of a long log by the policy that generated it."""
    size = {"steps": 53_000, "weights": 996}
    return [
        Case("ratios", **size, values="state", policy=stochastic),
        Case("state-action", **size, values="state-action", policy=stochastic),
        Case("state-action, greedy", **size, values="state-action", policy=greedy),
        Case("on-policy, (181,000, 1,001)", 181_000, 1001, "state", None),
    ]


def floor_seconds(log: vf.Transitions, weights: int) -> float:
    """Seconds for the rows of all observations and the solution of A theta = b, as a textbook has it."""
    features = vf.features.make(f"kernel:landmarks={weights - 1}", log)[0]
    start = user_seconds()
    rows = features.transform(log.observations)
    after = np.where(((log.next >= 0) & ~log.terminated)[:, None], rows[log.next], 0.0)
    now = log.ratio[:, None] * rows[log.now]
    np.linalg.solve(now.T @ (rows[log.now] - DISCOUNT * after), now.T @ log.reward)
    return user_seconds() - start


def evaluate_seconds(log: vf.Transitions, case: Case) -> Seconds:
    """Seconds of an evaluation in all, and of its cross-checks and checks."""
    start = user_seconds()
    stages = stage_seconds(log, case.settings, "auto", passes=False)
    return {"evaluate": user_seconds() - start, **stages}


def measure(case: Case, repeats: int = 3) -> Seconds:
    """Median seconds of the evaluation and of the floor, in alternating runs."""
    log = make_log(case.steps, actions=ACTIONS)
    with limit_threads(1):
        runs = [{"floor": floor_seconds(log, case.weights), **evaluate_seconds(log, case)} for _ in range(repeats + 1)]
    runs = runs[1:] or runs
    return {stage: statistics.median(run.get(stage, 0.0) for run in runs) for stage in runs[0]}


def main() -> None:
    print(f"{'seconds':30}{'floor':>10}{'evaluate':>10}{'floors':>8}{'solve':>8}{'interval':>10}{'cross-checks':>14}"
          f"{'share':>8}{'checks':>8}{'share':>8}")  # fmt: skip
    for case in cases():
        seconds = measure(case)
        floor, whole = seconds["floor"], seconds["evaluate"]
        cross, checks = seconds.get("cross-checks", 0.0), seconds["checks"]
        share = cross / (whole - cross)
        outcome = "met" if whole <= MAX_FLOORS[case.values] * floor and share <= MAX_CROSS_CHECKS else "missed"
        print(f"{case.name:30}{floor:10.2f}{whole:10.2f}{whole / floor:8.2f}{seconds['solve']:8.2f}"
              f"{seconds['interval']:10.2f}{cross:14.2f}{share:8.0%}{checks:8.2f}{checks / whole:8.0%}"
              f"  at most {MAX_FLOORS[case.values]} and {MAX_CROSS_CHECKS:.0%}: {outcome}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
