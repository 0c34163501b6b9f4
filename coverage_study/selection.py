"""What `select` loses to the best candidate: the error of its choice over that of the best one, on many logs.

Errors are those of the value function at states of the log, and of the policy value. The fits are those of `select`:
each half of the episodes gets the candidate that was chosen on the other one, and errors of candidates are those of
their fits to the same halves. Run to measure and to write the table into docs/selection.md: [--only NAME ...].
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import valuefit as vf
from coverage_study.records import FOLDER, ROOT, Cell, Record, generator, run_cells
from coverage_study.tasks import Task, tasks
from coverage_study.worlds import Array, Policy, World, draw
from valuefit.atomic import write_bytes
from valuefit.evaluation.scoring import Sample
from valuefit.features.registry import Fitted, make
from valuefit.inference.inputs import make_problem
from valuefit.inference.policy_value import starts_of, value_rows

PAGE = ROOT / "docs" / "selection.md"
REPLICATIONS = 100
COMPARED = 10  # logs on which the other two rules are tried as well
MAX_RATIO = {"on-policy": 1.2, "ratios": 1.3, "state-action": 1.3}  # of the chosen error over the best candidate's
TEST_STATES, ROLLOUTS = 60, 1000  # at which the value function is simulated
NEGLIGIBLE_DISCOUNT = 1e-4


@dataclass(frozen=True)
class Design:
    """kind: what the candidates differ in. Other fields: as of `Task`."""

    task: str
    route: str
    episodes: int
    kind: str
    candidates: tuple[dict[str, Any], ...]

    @property
    def name(self) -> str:
        return f"{self.task}, {self.route}, {self.kind}"


def _features(names: str, *sizes: int) -> tuple[dict[str, Any], ...]:
    return tuple({"features": names.format(size)} for size in sizes)


def _designs() -> Iterator[Design]:
    ridges = tuple({"features": "kernel:landmarks=60", "ridge": ridge} for ridge in (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1))
    for route in MAX_RATIO:
        yield Design("sine-process", route, 80, "features", _features("fourier:order={}", 1, 2, 4, 8, 16))
        yield Design("puddle-world", route, 100, "features", _features("kernel:landmarks={}", 5, 20, 80, 160))
        yield Design("quadratic-process", route, 80, "ridge", ridges)


DESIGNS = {design.name: design for design in _designs()}


# ---- true values -------------------------------------------------------------------------------------------------


def states_of(world: World, policy: Policy, count: int, limit: int, rng: np.random.Generator) -> Array:
    """States that episodes of the policy visit."""
    state, visited = world.start(400, rng), []
    for _ in range(limit):
        visited.append(state)
        state, _, ended = world.step(state, draw(policy(world.observe(state)), rng), rng)
        state = state[~ended]
        if not len(state):
            break
    every = np.concatenate(visited)
    return every[rng.choice(len(every), count, replace=False)]


def values_at(
    world: World, policy: Policy, discount: float, states: Array, rollouts: int, rng: np.random.Generator
) -> Array:  # fmt: skip
    """Simulated values of the policy."""
    state = np.repeat(states, rollouts, axis=0)
    running, returns = np.arange(len(state)), np.zeros(len(state))
    for power in range(math.ceil(math.log(NEGLIGIBLE_DISCOUNT) / math.log(discount))):
        state, reward, ended = world.step(state, draw(policy(world.observe(state)), rng), rng)
        returns[running] += discount**power * reward
        running, state = running[~ended], state[~ended]
        if not len(running):
            break
    return np.asarray(returns.reshape(len(states), rollouts).mean(axis=1))


@cache
def true_values(task: str, route: str) -> tuple[Array, Array]:
    """Observations of the logged policy, and their values under the target policy."""
    found, rng = tasks()[task], np.random.default_rng(0)
    logged = found.target if route == "on-policy" else found.behaviour
    states = states_of(found.world, logged, TEST_STATES, found.limit, rng)
    values = values_at(found.world, found.target, found.discount, states, ROLLOUTS, rng)
    return found.world.observe(states), values


# ---- one log -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fits:
    """Fits of candidates to one half, without intervals."""

    task: Task
    design: Design
    evaluation: vf.Evaluation  # of the chosen candidate, with the log and the policy

    def errors(self, settings: dict[str, Any]) -> tuple[float, float]:
        """The policy value, and the root mean square error of the value function."""
        e, (observations, truth) = self.evaluation, true_values(self.design.task, self.design.route)
        fitted = self._features(settings)
        problem, theta = self._fit(settings, fitted, e.log)
        value = float(starts_of(e.log, problem, fitted, e.policy, e.values, None).c @ theta)
        found = np.asarray(value_rows(fitted, e.values, e.policy, problem.d, observations) @ theta).ravel()
        return value, math.sqrt(float(np.mean((found - truth) ** 2)))

    def mspbe(self, settings: dict[str, Any], folds: Array) -> float:
        """On held-out episodes, with their own moments: the score of version 0.1."""
        e, total, fitted = self.evaluation, 0.0, self._features(settings)
        for fold in np.unique(folds):
            _, theta = self._fit(settings, fitted, e.log[folds != fold])
            held_out = make_problem(e.log[folds == fold], fitted, e.policy, e.values, e.discount, 0.0, 0.0)
            total += held_out.objective(theta)
        return total

    def _features(self, settings: dict[str, Any]) -> Fitted:
        actions = self.task.world.actions if self.evaluation.values == "state-action" else 1
        return make(settings["features"], self.evaluation.log, actions=actions)[0]

    def _fit(self, settings: dict[str, Any], fitted: Fitted, log: vf.Transitions) -> tuple[vf.Problem, Array]:
        e = self.evaluation
        problem = make_problem(log, fitted, e.policy, e.values, e.discount, 0.0, settings.get("ridge", 0.0))
        return problem, vf.solve(problem, "lstd").theta


def run_one(design: Design, replication: int) -> Record:
    """What `select` chose on one log, and the errors of all candidates."""
    task, candidates = tasks()[design.task], list(design.candidates)
    log = task.log(design.route, design.episodes, generator(design.name, replication))
    settings = {name: value for name, value in task.settings(design.route, "auto").items() if name != "features"}
    started = time.process_time()
    found = vf.select(log, candidates, **settings)
    seconds = time.process_time() - started
    halves = [Fits(task, design, evaluation) for evaluation in found.evaluations]
    errors = np.array([[half.errors(one) for one in candidates] for half in halves])  # (half, candidate, 2)
    places = _chosen(found)
    low, high = found.policy_value.interval or (-math.inf, math.inf)
    record = {
        "values": (errors[:, :, 0].mean(axis=0) - task.truth).tolist(),
        "functions": errors[:, :, 1].mean(axis=0).tolist(),
        "chosen": _of(errors, places, task.truth), "places": places, "covered": low <= task.truth <= high,
        "level": found.verdict.level, "seconds": seconds,
    }  # fmt: skip
    if replication < COMPARED:
        simple = vf.select(log, candidates, rule="one-standard-error", **settings)
        record["simplest"] = _of(errors, _chosen(simple), task.truth)
        before = [int(np.argmin(_mspbes(half, candidates))) for half in reversed(halves)]  # where each choice is made
        record["before"] = _of(errors, before, task.truth)
    return record


def _chosen(found: vf.Selection) -> list[int]:
    """The position of the chosen candidate on each half."""
    return [[row["chosen"] for row in found.table if row["half"] == half].index(True) for half in (1, 2)]


def _mspbes(half: Fits, candidates: list[dict[str, Any]]) -> list[float]:
    e = half.evaluation
    sample = Sample(e.log, e.policy, values=e.values, discount=e.discount, folds=5, seed=0)
    return [half.mspbe(settings, sample.fold) for settings in candidates]


def _of(errors: Array, places: list[int], truth: float) -> tuple[float, float]:
    """The error of the policy value, and of the value function, of the candidate at each half's place."""
    picked = errors[[0, 1], places]
    return float(picked[:, 0].mean() - truth), float(picked[:, 1].mean())


# ---- all logs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """Ratios of mean errors to those of the best candidate.

    function, value: of the choice; simplest: with the one-standard-error rule; before: with the score of version 0.1;
    oracle: of the best candidate of each log.
    """

    logs: int
    function: float
    value: float
    simplest: float
    before: float
    oracle: float
    covered: float
    seconds: float


def summarise(records: list[Record]) -> Summary:
    functions = np.array([record["functions"] for record in records])
    values = np.abs([record["values"] for record in records])
    best, best_value = functions.mean(axis=0).min(), values.mean(axis=0).min()

    def ratio(name: str) -> float:
        known = [record for record in records if name in record]
        least = np.mean([record["functions"] for record in known], axis=0).min()
        return float(np.mean([record[name][1] for record in known]) / least)

    return Summary(
        len(records), ratio("chosen"), float(np.mean([abs(record["chosen"][0]) for record in records]) / best_value),
        ratio("simplest"), ratio("before"), float(functions.min(axis=1).mean() / best),
        float(np.mean([record["covered"] for record in records])),
        float(np.mean([record["seconds"] for record in records])),
    )  # fmt: skip


def lines_of(summaries: dict[str, Summary]) -> list[str]:
    """The table."""
    lines = [
        "| design | logs | value function | policy value | one standard error | MSPBE | best of each log | covered | "
        "target |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in summaries.items():
        limit = MAX_RATIO[DESIGNS[name].route]
        met = f"{limit:g}, {'met' if one.function <= limit else '**missed**'}"
        lines.append(
            f"| {name} | {one.logs} | {one.function:.2f} | {one.value:.2f} | {one.simplest:.2f} | {one.before:.2f} | "
            f"{one.oracle:.2f} | {one.covered:.0%} | {met} |"
        )
    return lines


def write_table(lines: list[str]) -> None:
    """Replace the table on the page."""
    text = PAGE.read_text()
    table = "\n".join(["<!-- measured -->", *lines, "<!-- end -->"])
    write_bytes(PAGE, re.sub(r"<!-- measured -->.*?<!-- end -->", lambda _: table, text, flags=re.S).encode())


class SelectionCell(Cell):
    """The logs of a design; a record is what `run_one` found."""

    def __init__(self, design: Design) -> None:
        self.design = design
        super().__init__(design.name.replace(", ", "-"), lambda rng: self._draw(rng), FOLDER / "selection")

    def _draw(self, rng: np.random.Generator) -> tuple[vf.Transitions, dict[str, Any], float]:
        task = tasks()[self.design.task]
        return task.log(self.design.route, self.design.episodes, rng), {}, task.truth

    def run(self, replication: int) -> Record:
        return run_one(self.design, replication)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing; returns the exit status, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m coverage_study.selection", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=DESIGNS, metavar="NAME", help=f"Designs: {'; '.join(DESIGNS)}.")
    parser.add_argument("--replications", type=int, default=REPLICATIONS, help="Logs per design.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Maximum time of all designs together.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    parser.add_argument("--keep", action="store_true", help="Go on with records of other sources.")
    options = parser.parse_args(arguments)
    names, summaries = options.only or list(DESIGNS), {}
    cells = [SelectionCell(DESIGNS[name]) for name in names]
    runs = run_cells(list(cells), options.replications, jobs=options.jobs, seconds=options.seconds, keep=options.keep)
    try:
        for name, (_, records) in zip(names, runs, strict=True):
            if records:
                summaries[name] = summarise(list(records.values()))
                print(lines_of(summaries)[-1], f"{summaries[name].seconds:.2f} s a log", flush=True)
    except KeyboardInterrupt:
        print("Interrupted; the same command resumes.")
        return 130
    if options.only is None:
        write_table(lines_of(summaries))
        print(f"Wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
