"""The cost of the interval, the cross-checks and the checks of `evaluate`, relative to its solve.

`python -m benchmarks.checks` evaluates a log of 100,000 steps with 200 weights by lstd on one thread: on-policy, by
ratios and by state-action values. Seconds of CPU time in user mode, which depend less on other processes than the clock
does; medians of three runs after one that is not measured. Target: cross-checks and checks take at most as long as the
solve.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

import valuefit as vf
from valuefit.evaluation import evaluation, penalty
from valuefit.threads import limit_threads

STEPS, WEIGHTS, LENGTH, DIMENSIONS, ACTIONS = 100_000, 200, 100, 4, 2
POLICY = (0.6, 0.4)  # probabilities of the two actions in every state; the log takes each with 0.5
TARGET = 1.0  # largest ratio of cross-checks and checks to the solve
STAGES = (
    (penalty, "solve", "solve"), (evaluation, "uncertainty", "interval"), (evaluation, "value_at_starts", "interval"),
    (evaluation, "cross_checks", "cross-checks"), (evaluation, "run_checks", "checks"),
)  # functions that `evaluate` calls: module, name, stage  # fmt: skip
Seconds = dict[str, float]


def make_log(steps: int) -> vf.Transitions:
    """Episodes of an autoregressive process whose reward depends on the action."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, DIMENSIONS))
    for t in range(1, LENGTH):
        x[t::LENGTH] += 0.9 * x[t - 1 :: LENGTH][: len(x[t::LENGTH])]
    action = rng.integers(0, ACTIONS, steps)
    return vf.Transitions.from_arrays(
        x, np.sin(x[:, 0]) + 0.5 * action * x[:, 1] + rng.standard_normal(steps),
        terminated=np.arange(steps) % LENGTH == LENGTH - 1, episode=np.arange(steps) // LENGTH,
        action=action, behaviour_prob=np.full(steps, 1 / ACTIONS),
    )  # fmt: skip


def cosines(observations: Any, count: int) -> Any:
    """A constant and random Fourier features, (m, count)."""
    rng = np.random.default_rng(1)
    angles = np.asarray(observations) @ rng.standard_normal((DIMENSIONS, count)) / 2 + rng.uniform(0, 2 * np.pi, count)
    angles[:, 0] = 0.0
    return np.cos(angles)


def policy(observations: Any) -> Any:
    return np.tile(POLICY, (len(observations), 1))


def evaluations(weights: int) -> dict[str, dict[str, Any]]:
    """Arguments of `evaluate` for the three routes, each with this many weights."""
    return {
        "on-policy": {"features": partial(cosines, count=weights)},
        "ratios": {"features": partial(cosines, count=weights), "policy": policy},
        "state-action values": {
            "features": partial(cosines, count=weights // ACTIONS), "policy": policy, "values": "state-action",
        },
    }  # fmt: skip


def user_seconds() -> float:
    """CPU time of this process in user mode."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def timed(work: Callable[..., Any], stage: str, found: Seconds) -> Callable[..., Any]:
    """The function, which adds its seconds to those of the stage."""

    def call(*arguments: Any, **settings: Any) -> Any:
        start = user_seconds()
        made = work(*arguments, **settings)
        found[stage] = found.get(stage, 0.0) + user_seconds() - start
        return made

    return call


def stage_seconds(log: vf.Transitions, settings: dict[str, Any]) -> Seconds:
    """Seconds of each stage of one evaluation."""
    found: Seconds = {}
    with ExitStack() as patches:
        for module, name, stage in STAGES:
            patches.enter_context(patch.object(module, name, timed(getattr(module, name), stage, found)))
        vf.evaluate(log, discount=0.95, solver="lstd", **settings)
    return found


def measure(steps: int = STEPS, weights: int = WEIGHTS, repeats: int = 3) -> dict[str, Seconds]:
    """Median seconds of each stage by route."""
    log, medians = make_log(steps), {}
    with limit_threads(1):
        for route, settings in evaluations(weights).items():
            runs = [stage_seconds(log, settings) for _ in range(repeats + 1)][1:]
            medians[route] = {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}
    return medians


def relative_cost(found: Seconds) -> float:
    """Of cross-checks and checks, to the solve."""
    return (found["cross-checks"] + found["checks"]) / found["solve"]


def main() -> None:
    stages = list(dict.fromkeys(stage for _, _, stage in STAGES))
    print(f"{'route':22}" + "".join(f"{stage:>14}" for stage in stages) + f"{'ratio':>8}  (at most {TARGET:g})")
    for route, found in measure().items():
        times = "".join(f"{found[stage]:12.3f} s" for stage in stages)
        print(f"{route:22}{times}{relative_cost(found):8.2f}")


if __name__ == "__main__":
    main()
