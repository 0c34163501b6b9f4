"""The cost of the interval, the cross-checks and the checks of `evaluate`, in passes over the log.

`python -m benchmarks.checks` evaluates logs by lstd, tiles by krylov, on one thread, in two minutes. Seconds of CPU
time in user mode, which depend less on other processes than the clock does; medians of three runs after one that is not
measured. A pass is A theta - b over the rows of the same log, in the same run. Targets: with 100,000 steps and 200
weights interval, cross-checks and checks together take at most as long as the solve; elsewhere each takes at most 30
passes. A second table has what runs only when it is asked for: the intervals of 10,000 values, in passes.
"""

from __future__ import annotations

import resource
import statistics
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

import valuefit as vf
from valuefit.evaluation import evaluate, fitting
from valuefit.threads import limit_threads

LENGTH, DIMENSIONS, ACTIONS = 100, 4, 2
POLICY = (0.6, 0.4)  # probabilities of the two actions in every state; the log takes each with 0.5
MAX_RATIO, MAX_PASSES = 1.0, 30  # the targets
VALUES = 10_000  # whose intervals are asked for
PASS_SECONDS = 0.2  # that passes are timed for
STAGES = (
    (fitting, "solve", "solve"), (evaluate, "starts_note", "interval"),  # the first that asks for the errors
    (evaluate, "cross_checks", "cross-checks"), (evaluate, "run_checks", "checks"),
)  # functions that `evaluate` calls: module, name, stage  # fmt: skip
KERNEL, TILES = "kernel:landmarks=2000", "tiles:tilings=8,bins=35"
SMALL = {KERNEL: "kernel:landmarks=10", TILES: "tiles:tilings=2,bins=4"}  # for small versions
ADDED = ("interval", "cross-checks", "checks")
Seconds = dict[str, float]


@dataclass(frozen=True)
class Case:
    """A log of so many steps, and how it is evaluated. relative: whether the target is relative to the solve."""

    name: str
    steps: int
    make: Callable[[int], vf.Transitions]
    settings: dict[str, Any]
    relative: bool = False
    solver: str = "lstd"

    def shrunk(self) -> Case:
        """A small version, to test the code."""
        features = self.settings["features"]
        features = partial(cosines, count=6) if callable(features) else SMALL.get(features, features)
        return replace(self, steps=2000, settings={**self.settings, "features": features})


def make_log(
    steps: int, dimensions: int = DIMENSIONS, length: int = LENGTH, *, actions: int = ACTIONS
) -> vf.Transitions:
    """Episodes of an autoregressive process whose reward depends on the action."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, dimensions))
    for t in range(1, length):
        x[t::length] += 0.9 * x[t - 1 :: length][: len(x[t::length])]
    action = rng.integers(0, actions, steps)
    return vf.Transitions.from_arrays(
        x, np.sin(x[:, 0]) + 0.5 * action * x[:, 1] + rng.standard_normal(steps),
        terminated=np.arange(steps) % length == length - 1, episode=np.arange(steps) // length,
        action=action, behaviour_prob=np.full(steps, 1 / actions),
    )  # fmt: skip


def make_table(steps: int, states: int = 400, length: int = LENGTH) -> vf.Transitions:
    """Episodes of a Markov chain with numbered states, each of which has ten successors."""
    rng = np.random.default_rng(0)
    successors = rng.integers(0, states, (states, 10))
    state = rng.integers(0, states, steps)
    choice = rng.integers(0, 10, steps)
    for t in range(1, length):
        before = state[t - 1 :: length][: len(state[t::length])]
        state[t::length] = successors[before, choice[t::length]]
    return vf.Transitions.from_arrays(
        state, np.sin(state) + rng.standard_normal(steps), terminated=np.arange(steps) % length == length - 1,
        episode=np.arange(steps) // length,
    )  # fmt: skip


def cosines(observations: Any, count: int) -> Any:
    """A constant and random Fourier features, (m, count)."""
    rng = np.random.default_rng(1)
    angles = np.asarray(observations) @ rng.standard_normal((DIMENSIONS, count)) / 2 + rng.uniform(0, 2 * np.pi, count)
    angles[:, 0] = 0.0
    return np.cos(angles)


def policy(observations: Any) -> Any:
    return np.tile(POLICY, (len(observations), 1))


def cases() -> list[Case]:
    """Those of the targets."""
    features = {"features": partial(cosines, count=200)}
    pairs = {"features": partial(cosines, count=200 // ACTIONS), "policy": policy, "values": "state-action"}
    return [
        Case("(1e5, 200) on-policy", 100_000, make_log, features, relative=True),
        Case("(1e5, 200) ratios", 100_000, make_log, {**features, "policy": policy}, relative=True),
        Case("(1e5, 200) state-action", 100_000, make_log, pairs, relative=True),
        Case("(2e4, 1000) cosines", 20_000, make_log, {"features": partial(cosines, count=1000)}),
        Case("(2e4, 2000) kernel", 20_000, make_log, {"features": KERNEL}),
        Case("(2e5, 400) one-hot", 200_000, make_table, {"features": "one-hot"}),
        Case("(1e5, 1e4) tiles", 100_000, partial(make_log, dimensions=2), {"features": TILES}, solver="krylov"),
    ]


def asked_cases() -> list[Case]:
    """Those of the second table."""
    features, table = {"features": partial(cosines, count=200)}, {"features": "one-hot"}
    short = {"length": 10}
    return [
        Case("(1e5, 200)", 100_000, make_log, features),
        Case("(1e5, 200) of 10 steps", 100_000, partial(make_log, **short), features),
        Case("(1e5, 200) ridge", 100_000, make_log, {**features, "ridge": 1e-3}),
        Case("(2e4, 200)", 20_000, make_log, features),
        Case("(5e4, 400) one-hot", 50_000, make_table, table),
        Case("(5e4, 400) of 10 steps", 50_000, partial(make_table, **short), table),
        Case("(4e3, 400) of 10 steps", 4_000, partial(make_table, **short), table),
        Case("(2e5, 1000) one-hot", 200_000, partial(make_table, states=1000), table),
    ]


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


def pass_seconds(problem: vf.Problem, theta: Any) -> float:
    """The mean time of a pass, over so many that the clock resolves it."""
    start, count = user_seconds(), 0
    while user_seconds() - start < PASS_SECONDS:
        problem.residual(theta)
        count += 1
    return (user_seconds() - start) / count


def stage_seconds(
    log: vf.Transitions, settings: dict[str, Any], solver: str = "lstd", *, passes: bool = True
) -> Seconds:
    """Seconds of each stage of one evaluation, and of a pass."""
    found: Seconds = {}
    with ExitStack() as patches:
        for module, name, stage in STAGES:
            patches.enter_context(patch.object(module, name, timed(getattr(module, name), stage, found)))
        evaluated = vf.evaluate(log, discount=0.95, solver=solver, **settings)
    return {"pass": pass_seconds(evaluated.problem, evaluated.result.theta) if passes else 0.0, **found}


def measure(case: Case, repeats: int = 3) -> Seconds:
    """Median seconds of each stage, and of a pass."""
    log = case.make(case.steps)
    with limit_threads(1):
        runs = [stage_seconds(log, case.settings, case.solver) for _ in range(repeats + 1)][1:]
    return {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}


def measure_asked(case: Case, repeats: int = 3) -> Seconds:
    """Median seconds of a pass, the solve, and of intervals of values."""
    log, found = case.make(case.steps), {}
    with limit_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few episodes
        runs = [stage_seconds(log, case.settings, case.solver) for _ in range(repeats + 1)][1:]
        evaluated = vf.evaluate(log, discount=0.95, solver=case.solver, **case.settings)
        asked = log.observations[log.now[np.random.default_rng(3).integers(0, len(log), VALUES)]]
        evaluated.value_interval(asked[:2], simultaneous=True)
        for simultaneous in (False, True):
            values = partial(evaluated.value_interval, asked, simultaneous=simultaneous)
            name, seconds = "simultaneous" if simultaneous else "values", Seconds()
            for number in range(repeats):
                timed(values, str(number), seconds)()
            found[name] = statistics.median(seconds.values())
    return {stage: statistics.median(run[stage] for run in runs) for stage in ("pass", "solve")} | found


def relative_cost(found: Seconds) -> float:
    """Of interval, cross-checks and checks together, to the solve."""
    return sum(found[stage] for stage in ADDED) / found["solve"]


def met(found: Seconds, *, relative: bool) -> bool:
    """Whether the target is met."""
    if relative:
        return relative_cost(found) <= MAX_RATIO
    return all(found[stage] <= MAX_PASSES * found["pass"] for stage in ADDED)


def main() -> None:
    columns = ("solve", *ADDED)
    print(f"{'passes':24}" + "".join(f"{stage:>14}" for stage in columns) + f"{'pass':>12}{'ratio':>8}  target")
    for case in cases():
        found = measure(case)
        numbers = "".join(f"{found[stage] / found['pass']:14.1f}" for stage in columns)
        target = f"ratio at most {MAX_RATIO:g}" if case.relative else f"at most {MAX_PASSES} passes each"
        outcome = "met" if met(found, relative=case.relative) else "missed"
        numbers += f"{1e3 * found['pass']:9.2f} ms{relative_cost(found):8.2f}"
        print(f"{case.name:24}{numbers}  {target}: {outcome}", flush=True)
    print(f"\n{'asked for':24}{VALUES:>14,} values{'simultaneous':>18}")
    for case in asked_cases():
        found = measure_asked(case)
        numbers = "".join(
            f"{found[name] / found['pass']:9.0f} ({found[name] / found['solve']:.1f} solves)"
            for name in ("values", "simultaneous")
        )
        print(f"{case.name:24}{numbers}", flush=True)


if __name__ == "__main__":
    main()
