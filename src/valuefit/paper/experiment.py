"""Run an experiment: tune the steps of every method, run the best ones, and resume what was interrupted."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import operator
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.datasets.baird import CLASSIC_WEIGHTS, baird_features, baird_log
from valuefit.datasets.mdp import random_mdp
from valuefit.datasets.mountain_car import sarsa
from valuefit.engine.loop import solve
from valuefit.engine.result import STATUSES
from valuefit.paper.definition import Experiment, Panel
from valuefit.paper.run_files import are_numbers, damaged_run, read_run, write_run
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.problem.theory import Theory
from valuefit.solvers import registry
from valuefit.solvers.solver import Solver
from valuefit.threads import limit_threads

# Rungs of successive halving on the first tuning seed: (fraction of the pass budget, fraction of configurations that
# is promoted). The configurations promoted from the last rung run with the full budget on every tuning seed.
RUNGS = ((1 / 32, 1 / 4), (1 / 6, 0.0))
SOLVED_GAP = 1e-10  # smaller gaps are not compared


@dataclass(frozen=True)
class Job:
    """One run of one method with given steps; equal jobs give equal curves, so a finished job is not run again."""

    panel: Panel
    method: str
    step_theta: float
    step_w: float
    passes: float
    seed: int

    @property
    def name(self) -> str:
        """A hash of all fields, the name of the file of its result."""
        text = json.dumps([self.panel.key, self.method, self.step_theta, self.step_w, self.passes, self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True, eq=False)
class Prepared:
    """The problem of a panel, its minimiser, the starting point, and the units of its step grids."""

    problem: Problem
    reference: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any] | None
    unit_theta: float
    unit_w: float


@lru_cache(maxsize=4)
def prepare(key: str) -> Prepared:
    """Build the problem of `Panel.key`; cached per process."""
    source, settings, ridge = json.loads(key)
    log, features, start = _make_log(source)
    problem = Problem(log, features, **settings)
    penalty = float(ridge.get("times", 0.0))
    if penalty:
        L = Theory(problem).L_rho
        penalty *= math.sqrt(L) if ridge.get("of") == "sqrt(L)" else L
        problem = Problem(log, features, **settings, ridge=penalty)
    theory = Theory(problem)
    if not theory.L_rho:
        raise ValueError("A is zero on this log, so the paper's step sizes do not exist. Use more steps.")
    # the units of the paper's grid, section 8
    unit_theta, unit_w = 1 / (theory.L_rho * theory.kappa_C), 1 / theory.lambda_max_C
    return Prepared(problem, Exact(problem).theta, start, unit_theta, unit_w)


def _make_log(source: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The log, its features and the initial theta (None: 0) of a [source] table, whose keys have been checked."""
    settings = dict(source)
    kind, steps, seed = settings.pop("kind"), settings.pop("steps"), settings.pop("seed", 0)
    if kind == "random-mdp":
        mdp = random_mdp(**settings, seed=seed)
        return mdp.log(steps, seed=seed), mdp.rows, None
    if kind == "baird":
        return baird_log(steps, seed=seed), baird_features, CLASSIC_WEIGHTS
    policy = sarsa(seed=seed)
    return policy.log(steps, seed=seed), policy.tiles.transform, None


def make_solver(method: str, step_theta: float, step_w: float) -> Solver:
    """The method with constant steps, as in the paper's experiments."""
    kind: Any = registry()[method]
    if method == "flstd-sa":
        return kind(step=step_theta, decay=math.inf)
    constant = {"decay": math.inf} if method in ("gtd2", "tdc") else {}
    return kind(step_theta=step_theta, step_w=step_w, **constant)


def run_job(job: Job) -> dict[str, Any]:
    """Run a job; returns its curve of passes and exact gap, thinned to at most 600 points, denser at the beginning."""
    with limit_threads(1):
        ready = prepare(job.panel.key)
        solver: Any = make_solver(job.method, job.step_theta * ready.unit_theta, job.step_w * ready.unit_w)
        if job.method == "svrg":  # N = 2n, as in the paper
            solver = replace(solver, inner=2 * ready.problem.n)
        epochs_at_rounding = 0

        def stop(progress: Any) -> bool:
            nonlocal epochs_at_rounding
            epochs_at_rounding += progress.gap < 1e-13
            return epochs_at_rounding > 3

        result = solve(
            ready.problem, solver, tol=0, max_passes=job.passes, seed=job.seed, init=ready.start,
            reference=ready.reference, callback=stop,
        )  # fmt: skip
    passes, gap = result.history["passes"], result.history["gap"]
    if len(passes) > 600:
        last = len(passes) - 1
        kept = np.unique(np.concatenate([np.linspace(0, last, 400), np.geomspace(1, last, 200)]).astype(int))
        passes, gap = passes[kept], gap[kept]
    finite = np.isfinite(gap)
    return {
        "method": job.method,
        "panel": job.panel.label,
        "step_theta": job.step_theta,
        "step_w": job.step_w,
        "seed": job.seed,
        "status": result.status,
        "passes": [round(float(value), 4) for value in passes[finite]],
        "gap": [float(f"{value:.6e}") for value in gap[finite]],
    }


def score(run: dict[str, Any]) -> float:
    """The score of a run, lower is better.

    In this order: runs that reach `SOLVED_GAP`, by their passes to it; runs that do not, by the last gap; unstable runs
    (the gap rose a hundredfold above its minimum so far), by the last gap; diverged runs, later divergence first.
    """
    gap, passes = np.array(run["gap"]), np.array(run["passes"])
    if len(gap) == 0:
        return math.inf
    if run["status"] == "diverged":
        return 1e20 / (1 + float(passes[-1]))
    last = min(max(float(gap[-1]), 1e-300), 1e3)
    lowest = np.minimum.accumulate(np.maximum(gap, SOLVED_GAP))
    if (gap > 100 * lowest).any():
        return 1e10 * (1 + last)
    solved = np.flatnonzero(gap <= SOLVED_GAP)
    return float(passes[solved[0]]) if len(solved) else 1e8 * (1 + last)


@dataclass(frozen=True)
class Curves:
    """The tuned steps of one method on one grid in one panel, and their runs on the reported seeds."""

    panel: str
    grid: str
    method: str
    step_theta: float
    step_w: float
    unit_theta: float
    unit_w: float
    runs: list[dict[str, Any]]


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    jobs: int = 2,
    progress: Callable[[str, float], None] = lambda text, fraction: None,
) -> list[Curves]:
    """Tune the steps of each method on each grid, then run the best steps on the reported seeds.

    Every finished run is written to `folder`/runs at once, so that a second call resumes an interrupted one.
    progress: called after each run with its description and the completed fraction of all passes.
    """
    store = folder / "runs"
    store.mkdir(parents=True, exist_ok=True)
    searches = [
        StepSearch(experiment, panel, grid, method)
        for panel in experiment.panels
        for grid in experiment.grids
        for method in experiment.methods
        if not (panel.ridge and "ridge" in registry()[method].refusals)
    ]
    total_passes, done = sum(search.total_passes for search in searches), 0.0
    with ProcessPoolExecutor(jobs, initializer=_end_with_parent) as pool:
        try:
            while rung := [(search, job, job.name) for search in searches for job in search.next_rung()]:
                wanted = {name: job for _, job, name in rung}  # the grids overlap, so two searches may share a job
                files = {name: store / f"{name}.json" for name in wanted}
                runs = {name: _read_run(files[name], job) for name, job in wanted.items() if files[name].exists()}
                running = {pool.submit(run_job, job): name for name, job in wanted.items() if name not in runs}
                for future in as_completed(running):
                    finished = running[future]
                    runs[finished] = future.result()
                    write_run(files[finished], runs[finished])
                    passes = done + sum(job.passes for _, job, name in rung if name in runs)
                    job = wanted[finished]
                    progress(f"{job.panel.label}: {job.method}", passes / total_passes)
                done += sum(job.passes for _, job, _ in rung)
                for search, job, name in rung:
                    search.add_result(job, runs[name])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [search.curves() for search in searches]


def _end_with_parent() -> None:
    """In a worker: end when the parent process does, also if it was killed and could not stop its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _read_run(path: Path, job: Job) -> dict[str, Any]:
    """The curve of a finished job, as `run_job` returned it."""
    wanted = {
        "method": job.method, "panel": job.panel.label, "step_theta": job.step_theta, "step_w": job.step_w,
        "seed": job.seed,
    }  # fmt: skip
    checks = {name: partial(operator.eq, value) for name, value in wanted.items()}
    run = read_run(path, {**checks, "status": STATUSES.__contains__, "passes": are_numbers, "gap": are_numbers})
    if len(run["passes"]) != len(run["gap"]):
        raise damaged_run(path, "'passes' and 'gap' have different lengths")
    return run


class StepSearch:
    """Search for the best steps of one method on one grid in one panel, by successive halving.

    The rungs of `RUNGS` run on the first tuning seed. The configurations (step_theta, step_w) that remain run with the
    full budget on every tuning seed and are ranked by their worst score; the best one runs on the reported seeds.
    """

    def __init__(self, experiment: Experiment, panel: Panel, grid: str, method: str) -> None:
        self.experiment, self.panel, self.grid, self.method = experiment, panel, grid, method
        self.results: dict[tuple[float, float], list[dict[str, Any]]] = {}  # runs of the current rung, by configuration
        steps = experiment.grids[grid]
        one_step = method == "flstd-sa"
        self.configurations = [
            (a, b) for a in steps["step_theta"] for b in (steps["step_w"][:1] if one_step else steps["step_w"])
        ]
        self._remaining = self._rungs()

    @property
    def total_passes(self) -> float:
        """The passes of all rungs."""
        count, passes = len(self.configurations), 0.0
        for budget, promoted in RUNGS:
            passes += count * self._passes(budget)
            count = _promoted_count(count, promoted)
        runs = count * len(self.experiment.tuning_seeds) + len(self.experiment.seeds)
        return passes + runs * self._passes(1)

    def next_rung(self) -> list[Job]:
        """The jobs of the next rung; empty if the search has finished."""
        return next(self._remaining, [])

    def _rungs(self) -> Iterator[list[Job]]:
        configurations = self.configurations
        for budget, promoted in RUNGS:
            yield self._rung(configurations, budget, self.experiment.tuning_seeds[:1])
            configurations = self._ranked()[: _promoted_count(len(configurations), promoted)]
        yield self._rung(configurations, 1, self.experiment.tuning_seeds)
        yield self._rung(self._ranked()[:1], 1, self.experiment.seeds)

    def _rung(self, configurations: list[tuple[float, float]], budget: float, seeds: tuple[int, ...]) -> list[Job]:
        self.results = {steps: [] for steps in configurations}
        passes = self._passes(budget)
        return [Job(self.panel, self.method, *steps, passes, seed) for steps in configurations for seed in seeds]

    def _passes(self, budget: float) -> float:
        # SVRG with N = 2n takes eight snapshots in 24 passes
        return min(self.panel.passes, max(24.0, budget * self.panel.passes))

    def _ranked(self) -> list[tuple[float, float]]:
        """The configurations of this rung, best first; ties by smaller steps."""
        return sorted(self.results, key=lambda steps: (max(map(score, self.results[steps])), steps))

    def add_result(self, job: Job, run: dict[str, Any]) -> None:
        self.results[(job.step_theta, job.step_w)].append(run)

    def curves(self) -> Curves:
        with limit_threads(1):  # as in `run_job`, so that the reported units equal those of the runs to the bit
            ready = prepare(self.panel.key)
        ((best, runs),) = self.results.items()
        runs = sorted(runs, key=lambda run: run["seed"])
        return Curves(self.panel.label, self.grid, self.method, *best, ready.unit_theta, ready.unit_w, runs)


def _promoted_count(count: int, promoted: float) -> int:
    """How many of this many configurations are promoted, three at least."""
    return min(count, max(3, round(promoted * count)))
