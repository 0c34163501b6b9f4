"""Experiments as data: problems, methods, step grids and seeds from a TOML file; tuned, run, resumed."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from valuefit.exact import Exact
from valuefit.loop import solve
from valuefit.problem import Problem
from valuefit.result import write_bytes
from valuefit.solver import Solver
from valuefit.solvers import find, registry
from valuefit.sources.baird import CLASSIC_WEIGHTS, baird_features, baird_log
from valuefit.sources.random_mdp import random_mdp
from valuefit.theory import Theory

HOME = Path(__file__).parent / "experiments"
# Successive halving: parts of the budget, and how many of the settings go on to the next
RUNGS = ((1 / 32, 1 / 4), (1 / 4, 1 / 8), (1, 0))
REACHED = 1e-10  # a gap this small is as good as any in a figure


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: a problem and the label above it."""

    label: str
    source: dict[str, Any]
    problem: dict[str, Any]
    ridge: dict[str, Any]

    @property
    def key(self) -> str:
        return json.dumps([self.source, self.problem, self.ridge], sort_keys=True)


@dataclass(frozen=True)
class Job:
    """One run of one method at given steps; equal jobs give equal curves, so a finished one is never run again."""

    panel: Panel
    method: str
    step_theta: float
    step_w: float
    passes: float
    seed: int

    @property
    def name(self) -> str:
        text = json.dumps([self.panel.key, self.method, self.step_theta, self.step_w, self.passes, self.seed])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Experiment:
    """What a TOML file says."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    methods: tuple[str, ...]
    grids: dict[str, dict[str, list[float]]]
    passes: float
    seeds: tuple[int, ...]
    tuning_seed: int


def available() -> list[str]:
    """Names of the experiments that come with the package."""
    return sorted(path.stem for path in HOME.glob("*.toml"))


def load_experiment(name: str, *, quick: bool = False, seed: int = 0) -> Experiment:
    """An experiment by name, or from a path to a TOML file; `quick` applies its [quick] table."""
    path = Path(name) if name.endswith(".toml") else HOME / f"{name}.toml"
    if not path.exists():
        raise ValueError(f"There is no experiment {name!r}. There are {', '.join(available())}, or give a .toml file.")
    try:
        data = tomllib.loads(path.read_text())
        small = data.pop("quick", {}) if quick else {}
        source = {**data["source"], **small.get("source", {})}
        panels = tuple(
            Panel(
                panel["label"],
                panel.get("only_source") or {**source, **panel.get("source", {})},
                {**data.get("problem", {}), **panel.get("problem", {})},
                panel.get("ridge", {}),
            )
            for panel in data["panel"]
        )
        run = {**data["run"], **small.get("run", {})}
        grids = {**data["grid"], **small.get("grid", {})}
        seeds = tuple(seed + 1 + k for k in range(run["seeds"]))
        title = data["title"] + (" (quick version, smaller)" if quick else "")
        return Experiment(path.stem, title, panels, tuple(run["methods"]), grids, float(run["passes"]), seeds, seed)
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not an experiment: {error!r}. See those in {HOME}.") from error


@dataclass(frozen=True, eq=False)
class Prepared:
    """A panel's problem with what its step grids are scaled by."""

    problem: Problem
    reference: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any] | None
    unit_theta: float
    unit_w: float


@lru_cache(maxsize=4)
def prepare(key: str) -> Prepared:
    """The problem of a panel, made anew in each process."""
    source, settings, ridge = json.loads(key)
    log, features, start = _make_log(source)
    plain = Problem(log, features, **settings)
    amount = float(ridge.get("times", 0.0))
    if amount:
        L = Theory(plain).L_rho
        amount *= math.sqrt(L) if ridge.get("of") == "sqrt(L)" else L
    problem = Problem(log, features, **settings, ridge=amount) if amount else plain
    theory = Theory(problem)
    # the units of the paper's grid, section 8
    unit_theta, unit_w = 1 / (theory.L_rho * theory.kappa_C), 1 / theory.lambda_max_C
    return Prepared(problem, Exact(problem).theta, start, unit_theta, unit_w)


def _make_log(source: dict[str, Any]) -> tuple[Any, Any, Any]:
    settings = dict(source)
    kind, steps, seed = settings.pop("kind"), settings.pop("steps"), settings.pop("seed", 0)
    if kind == "random-mdp":
        mdp = random_mdp(**settings, seed=seed)
        return mdp.log(steps, seed=seed), mdp.rows, None
    if kind == "baird":
        return baird_log(steps, seed=seed), baird_features, CLASSIC_WEIGHTS
    if kind == "mountain-car":
        from valuefit.sources.mountain_car import sarsa  # scikit-learn takes a second

        policy = sarsa(seed=seed)
        return policy.log(steps, seed=seed), policy.tiles.transform, None
    raise ValueError(f"There is no source {kind!r}; there are random-mdp, baird and mountain-car.")


def make_solver(method: str, step_theta: float, step_w: float) -> Solver:
    """The method as the paper ran it: constant steps, SVRG with N = 2n."""
    kind: Any = registry()[method]
    if method == "flstd-sa":
        return kind(step=step_theta, decay=math.inf)
    extra: dict[str, Any] = {"gtd2": {"decay": math.inf}, "tdc": {"decay": math.inf}}.get(method, {})
    return kind(step_theta=step_theta, step_w=step_w, **extra)


def run_job(job: Job) -> dict[str, Any]:
    """The curve of one run: passes and true gap, thinned to a few hundred points."""
    with threadpool_limits(1):
        ready = prepare(job.panel.key)
        solver: Any = make_solver(job.method, job.step_theta * ready.unit_theta, job.step_w * ready.unit_w)
        if job.method == "svrg":
            solver = find(type(solver)(solver.step_theta, solver.step_w, inner=2 * ready.problem.n))
        low = [0]

        def enough(standing: Any) -> bool:
            low[0] += standing.gap < 1e-13
            return low[0] > 3

        result = solve(
            ready.problem, solver, tol=0, max_passes=job.passes, seed=job.seed, init=ready.start,
            reference=ready.reference, callback=enough,
        )  # fmt: skip
    passes, gap = result.history["passes"], result.history["gap"]
    if len(passes) > 400:
        kept = np.unique(np.linspace(0, len(passes) - 1, 400).astype(int))
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
    """Lower is better: passes until the gap is as good as zero, and above all those, the last gap."""
    gap, passes = np.array(run["gap"]), np.array(run["passes"])
    if run["status"] == "diverged" or len(gap) == 0:
        return math.inf
    below = np.flatnonzero(gap <= REACHED)
    if len(below):
        return float(passes[below[0]])
    return 1e9 * (1 + max(float(gap[-1]), 1e-300))


@dataclass(frozen=True)
class Curves:
    """The best steps of one method on one grid in one panel, and their runs on the other seeds."""

    panel: str
    grid: str
    method: str
    step_theta: float
    step_w: float
    unit_theta: float
    unit_w: float
    runs: list[dict[str, Any]]


def run_experiment(
    experiment: Experiment, folder: Path, *, jobs: int = 2, progress: Callable[[str], None] = lambda text: None
) -> list[Curves]:
    """Tune each method on each grid, then run the best steps on the other seeds.

    Every finished run is a file in `folder`/runs, written at once; a second call takes up where the first ended.
    """
    store = folder / "runs"
    store.mkdir(parents=True, exist_ok=True)
    races = [
        Race(experiment, panel, grid, method)
        for panel in experiment.panels
        for grid in experiment.grids
        for method in experiment.methods
        if not (panel.ridge and "ridge" in registry()[method].refusals)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        pending: dict[Future[dict[str, Any]], Job] = {}
        wanted_by: dict[str, list[Race]] = {}  # the grids overlap, so two races may wait for one run

        def feed(race: Race) -> None:
            while not race.waiting and not race.finished:
                for job in race.next_jobs():
                    path = store / f"{job.name}.json"
                    if path.exists():
                        race.take(job, json.loads(path.read_text()))
                        continue
                    race.waiting.add(job.name)
                    if job.name not in wanted_by:
                        pending[pool.submit(run_job, job)] = job
                    wanted_by.setdefault(job.name, []).append(race)

        try:
            for race in races:
                feed(race)
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    job = pending.pop(future)
                    run = future.result()
                    write_bytes(store / f"{job.name}.json", json.dumps(run, allow_nan=False).encode())
                    for race in wanted_by.pop(job.name):
                        race.waiting.remove(job.name)
                        race.take(job, run)
                        feed(race)
                    progress(f"{job.panel.label}: {job.method}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [race.curves() for race in races]


class Race:
    """One method on one grid in one panel: successive halving on the tuning seed, then the winner on the others."""

    def __init__(self, experiment: Experiment, panel: Panel, grid: str, method: str) -> None:
        self.experiment, self.panel, self.grid, self.method = experiment, panel, grid, method
        self.waiting: set[str] = set()
        self.results: dict[tuple[float, float], dict[str, Any]] = {}
        self.final: list[dict[str, Any]] = []
        self.best = (0.0, 0.0)
        self.finished = False
        self._stages = self._plan()

    def next_jobs(self) -> list[Job]:
        """The jobs of the next stage; empty when all is done."""
        found = next(self._stages, None)
        if found is None:
            self.finished = True
            return []
        return found

    def _job(self, steps: tuple[float, float], part: float, seed: int) -> Job:
        return Job(self.panel, self.method, *steps, max(4.0, part * self.experiment.passes), seed)

    def _plan(self) -> Iterator[list[Job]]:
        grid = self.experiment.grids[self.grid]
        one_step = self.method == "flstd-sa"
        field = [(a, b) for a in grid["step_theta"] for b in (grid["step_w"][:1] if one_step else grid["step_w"])]
        for part, kept in RUNGS:
            self.results = {}
            yield [self._job(steps, part, self.experiment.tuning_seed) for steps in field]
            field = sorted(self.results, key=lambda steps: score(self.results[steps]))
            field = field[: max(2, round(kept * len(field)))]
        self.best = field[0]
        self.final = []
        self.results = {}
        yield [self._job(self.best, 1, seed) for seed in self.experiment.seeds]

    def take(self, job: Job, run: dict[str, Any]) -> None:
        self.results[(job.step_theta, job.step_w)] = run
        if job.seed != self.experiment.tuning_seed:
            self.final.append(run)

    def curves(self) -> Curves:
        ready = prepare(self.panel.key)
        runs = sorted(self.final, key=lambda run: run["seed"])
        return Curves(self.panel.label, self.grid, self.method, *self.best, ready.unit_theta, ready.unit_w, runs)
