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

from valuefit.atomic import write_bytes
from valuefit.datasets.baird import CLASSIC_WEIGHTS, baird_features, baird_log
from valuefit.datasets.mdp import random_mdp
from valuefit.engine.loop import solve
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.problem.theory import Theory
from valuefit.solvers import find, registry
from valuefit.solvers.solver import Solver
from valuefit.threads import limit_threads

HOME = Path(__file__).parent
# Successive halving on the first tuning seed: parts of the budget, and how many of the settings go on to the next
RUNGS = ((1 / 32, 1 / 4), (1 / 6, 0.0))
FINALISTS = 3  # that many at least go on; the last ones run in full on every tuning seed
SHORTEST = 24.0  # passes: SVRG with N = 2n takes eight snapshots in them
MORE_TUNING = (1000, 2000)  # added to the tuning seed: luck on one seed is no stability
REACHED = 1e-10  # a gap this small is as good as any in a figure
UNSTABLE = 100.0  # a gap that rises this much above its lowest is at the edge of stability


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: a problem and the label above it."""

    label: str
    source: dict[str, Any]
    problem: dict[str, Any]
    ridge: dict[str, Any]
    passes: float

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
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]


def available() -> list[str]:
    """Names of the experiments that come with the package."""
    return sorted(path.stem for path in HOME.glob("*.toml"))


def load_experiment(name: str, *, quick: bool = False, seed: int = 0) -> Experiment:
    """An experiment by name, or from a path to a TOML file; `quick` applies its [quick] table.

    Passes are those of [run], or a panel's own `passes`; in the quick version those of [quick.run], or a panel's
    `quick_passes`. `seed` and two far from it tune; the seeds after it are those reported.
    """
    path = Path(name) if name.endswith(".toml") else HOME / f"{name}.toml"
    if not path.exists():
        raise ValueError(f"There is no experiment {name!r}. There are {', '.join(available())}, or give a .toml file.")
    try:
        data = tomllib.loads(path.read_text())
        small = data.pop("quick", {}) if quick else {}
        run = {**data["run"], **small.get("run", {})}
        source = {**data["source"], **small.get("source", {})}
        panels = tuple(
            Panel(
                panel["label"],
                panel.get("only_source") or {**source, **panel.get("source", {})},
                {**data.get("problem", {}), **panel.get("problem", {})},
                panel.get("ridge", {}),
                float(panel.get("quick_passes" if quick else "passes", run["passes"])),
            )
            for panel in data["panel"]
        )
        grids = {**data["grid"], **small.get("grid", {})}
        seeds = tuple(seed + 1 + k for k in range(run["seeds"]))
        tuning = (seed, *(seed + more for more in MORE_TUNING))
        title = small.get("title", data["title"] + (" (quick version)" if quick else ""))
        return Experiment(path.stem, title, panels, tuple(run["methods"]), grids, seeds, tuning)
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
        from valuefit.datasets.mountain_car import sarsa  # scikit-learn takes a second

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
    """The curve of one run: passes and true gap, thinned to a few hundred points, more of them at the beginning."""
    with limit_threads(1):
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
    """Lower is better: passes until the gap is as good as zero; above all those, the last gap where it is not.

    Above those in turn: a run that was unstable (its gap rose a hundredfold above its lowest), by its last gap, and
    one that diverged, by how soon.
    """
    gap, passes = np.array(run["gap"]), np.array(run["passes"])
    if len(gap) == 0:
        return math.inf
    if run["status"] == "diverged":
        return 1e20 / (1 + float(passes[-1]))
    last = min(max(float(gap[-1]), 1e-300), 1e3)
    lowest = np.minimum.accumulate(np.maximum(gap, REACHED))
    if (gap > UNSTABLE * lowest).any():
        return 1e10 * (1 + last)
    below = np.flatnonzero(gap <= REACHED)
    return float(passes[below[0]]) if len(below) else 1e8 * (1 + last)


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
    experiment: Experiment,
    folder: Path,
    *,
    jobs: int = 2,
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> list[Curves]:
    """Tune each method on each grid, then run the best steps on the other seeds.

    Every finished run is a file in `folder`/runs, written at once; a second call takes up where the first ended.
    progress: called after each run with what it was and the share of all passes that is done.
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
        total = sum(race.total for race in races)

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
                    progress(f"{job.panel.label}: {job.method}", sum(race.done for race in races) / total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [race.curves() for race in races]


class Race:
    """One method on one grid in one panel: tuned on some seeds, then the winner run on the others.

    Successive halving on the first tuning seed; then each finalist in full on every tuning seed, where its worst
    score counts.
    """

    def __init__(self, experiment: Experiment, panel: Panel, grid: str, method: str) -> None:
        self.experiment, self.panel, self.grid, self.method = experiment, panel, grid, method
        self.waiting: set[str] = set()
        self.results: dict[tuple[float, float], list[dict[str, Any]]] = {}
        self.finished = False
        self.done = 0.0  # passes
        steps = experiment.grids[grid]
        one_step = method == "flstd-sa"
        self.field = [
            (a, b) for a in steps["step_theta"] for b in (steps["step_w"][:1] if one_step else steps["step_w"])
        ]
        self._stages = self._plan()

    @property
    def total(self) -> float:
        """The passes of all stages."""
        count, passes = len(self.field), 0.0
        for part, kept in RUNGS:
            passes += count * self._budget(part)
            count = _going_on(count, kept)
        runs = count * len(self.experiment.tuning_seeds) + len(self.experiment.seeds)
        return passes + runs * self._budget(1)

    def next_jobs(self) -> list[Job]:
        """The jobs of the next stage; empty when all is done."""
        found = next(self._stages, None)
        if found is None:
            self.finished = True
            return []
        return found

    def _plan(self) -> Iterator[list[Job]]:
        first = self.experiment.tuning_seeds[:1]
        field = self.field
        for part, kept in RUNGS:
            yield self._stage(field, part, first)
            field = self._ranked()[: _going_on(len(field), kept)]
        yield self._stage(field, 1, self.experiment.tuning_seeds)
        yield self._stage(self._ranked()[:1], 1, self.experiment.seeds)

    def _stage(self, field: list[tuple[float, float]], part: float, seeds: tuple[int, ...]) -> list[Job]:
        self.results = {steps: [] for steps in field}
        passes = self._budget(part)
        return [Job(self.panel, self.method, *steps, passes, seed) for steps in field for seed in seeds]

    def _budget(self, part: float) -> float:
        return min(self.panel.passes, max(SHORTEST, part * self.panel.passes))

    def _ranked(self) -> list[tuple[float, float]]:
        """The settings of this stage, best first; of equal ones, the smaller steps."""
        return sorted(self.results, key=lambda steps: (max(map(score, self.results[steps])), steps))

    def take(self, job: Job, run: dict[str, Any]) -> None:
        self.results[(job.step_theta, job.step_w)].append(run)
        self.done += job.passes

    def curves(self) -> Curves:
        with limit_threads(1):  # as in `run_job`, so that the steps told are those taken, to the bit
            ready = prepare(self.panel.key)
        ((best, found),) = self.results.items()
        runs = sorted(found, key=lambda run: run["seed"])
        return Curves(self.panel.label, self.grid, self.method, *best, ready.unit_theta, ready.unit_w, runs)


def _going_on(count: int, kept: float) -> int:
    return min(count, max(FINALISTS, round(kept * count)))
