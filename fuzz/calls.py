"""Calls of the Python API with odd arguments, compared with plain loops and exact LSTD."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas

import valuefit as vf
from fuzz.mutators import Rng, chance, number, odd_array, pick, scalar
from fuzz.outcome import RIGHT, ask, expect
from fuzz.reference import Invalid, Log, Step, Unknown, check_solution, compare_log, read_log
from fuzz.runner import Target
from fuzz.stored import small_log
from fuzz.tables import base_table

SLOW_SOLVERS = {"gtd2", "tdc", "flstd-sa", "catalyst"}
MAX_PASSES = {True: 20, False: 100}  # by whether the solver is slow
MAX_SOLVE_SECONDS = 2.0


def mutate_arguments(rng: Rng, arguments: dict[str, Any], scalars: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arguments with one or more of them replaced; those in `scalars` by odd scalars, the others by odd arrays."""
    changed = dict(arguments)
    for _ in range(int(rng.geometric(0.7))):
        name = pick(rng, [*arguments, *scalars])
        changed[name] = scalar(rng) if name in scalars or chance(rng, 0.2) else odd_array(rng, arguments[name])
    return changed


def plain_list(values: Any) -> Any:
    """An argument as a list with None for missing entries; raises where it is no array."""
    if isinstance(values, np.ma.MaskedArray | np.ndarray):
        return values.tolist()
    if isinstance(values, pandas.Series):
        return [None if one else value for one, value in zip(pandas.isna(values), values.tolist(), strict=True)]
    if isinstance(values, list):
        return values
    raise Unknown


# ---- Transitions ---------------------------------------------------------------------------------------------


def transitions_case(rng: Rng, folder: Path) -> str | None:
    columns = base_table(rng)
    names = {"obs": "observation", "next_obs": "next_observation"}
    arguments: dict[str, Any] = {}
    for name in ("obs", "next_obs"):
        parts = [columns.pop(column) for column in list(columns) if column.startswith(name)]
        if parts:
            arguments[names[name]] = np.array(parts[0]) if len(parts) == 1 else np.column_stack(parts)
    arguments |= {name: np.array(values) for name, values in columns.items() if name != "step"}
    arguments = mutate_arguments(rng, arguments)
    log = ask(lambda: vf.Transitions.from_arrays(**arguments))
    ask(repr, log)
    try:
        given = {name: plain_list(values) for name, values in arguments.items() if values is not None}
        compare_log(log, read_log(given))
    except Invalid as why:
        expect(False, f"accepted a log in which {why}")
    except Unknown:
        _use_log(rng, log)
        return None
    _use_log(rng, log)
    return RIGHT


def _use_log(rng: Rng, log: vf.Transitions) -> None:
    """Slice, select and split with odd arguments."""
    kind = int(rng.integers(4))
    if kind == 0:
        ask(vf.split, log, scalar(rng), seed=pick(rng, [0, 1, -1, "x", None, 2**70]))
    elif kind == 1:
        part = ask(log.select, odd_array(rng, np.unique(log.episode)[:2]))
        expect(0 < len(part) <= len(log), "select gave another number of steps")
    elif kind == 2:
        indices = rng.permutation(len(log))[: int(rng.integers(1, len(log) + 1))]
        ask(
            log.__getitem__,
            pick(rng, [slice(1, 3), slice(None, None, -1), slice(5, 2), indices, log.reward > 0, 0, -1]),
        )


# ---- problems and solves -------------------------------------------------------------------------------------


def random_log(rng: Rng) -> tuple[vf.Transitions, Log]:
    """A log with observations, rewards and ratios of any magnitude, and the same for the reference."""
    long = chance(rng, 0.01)
    n, d = (1100, 1) if long else (int(rng.integers(3, 25)), int(rng.integers(1, 4)))
    scales = 10.0 ** rng.integers(-8, 9, d) if chance(rng, 0.2) else 10.0 ** rng.integers(-3, 4, d)
    scales = scales * pick(rng, [*[1.0] * 30, 1e-60, 1e-55, 1e-30, 1e30, 1e60, 1e80])
    observations = np.round(rng.normal(size=(n, d)), 2) * scales
    after = np.where(np.arange(n)[:, None] == n - 1, observations[0], np.roll(observations, -1, axis=0))
    reward = np.round(rng.normal(size=n), 2) * pick(rng, [*[1.0] * 20, 1e-55, 1e-12, 1e12, 1e55, 1e60])
    if chance(rng, 0.1):
        reward = reward * observations[:, -1]
    ratio = np.ones(n)
    if long or chance(rng, 0.4):
        ratio = np.round(rng.uniform(0, 2, n), 2) * pick(rng, [*[1.0] * 8, 2.0, 1e5, 1e50, 1e100, 1e154, 1e-100])
        ratio = np.full(n, 2.0) if long else ratio
    episode = np.zeros(n, int) if long else np.arange(n) // int(rng.integers(1, 8))
    last = np.append(np.diff(episode) != 0, True)
    terminated = last & (rng.random(n) < 0.7)
    log = vf.Transitions.from_arrays(
        observations, reward, next_observation=after, terminated=terminated, truncated=last & ~terminated,
        episode=episode, ratio=ratio,
    )  # fmt: skip
    steps = [
        Step(int(episode[t]), tuple(observations[t].tolist()), None if terminated[t] else tuple(after[t].tolist()),
             float(reward[t]), bool(terminated[t]), bool(last[t] & ~terminated[t]), float(ratio[t]), None)
        for t in range(n)
    ]  # fmt: skip
    return log, Log(steps, labels=False)


def problem_case(rng: Rng, folder: Path) -> str | None:
    """`Problem` with odd options; its moments against plain loops."""
    log, expected = random_log(rng)
    options: dict[str, Any] = {
        "discount": pick(rng, [0.0, 0.5, 0.9, 1.0]),
        "trace": pick(rng, [0.0, 0.5, 1.0]),
        "ridge": 0.0,
    }
    if chance(rng, 0.7):
        options = mutate_arguments(rng, options, ("metric", "discount", "trace", "ridge"))
    if chance(rng, 0.3):
        width = int(rng.integers(1, 5))
        made = [
            None,
            lambda x: odd_array(rng, np.ones((len(x), width))),
            lambda x: np.ones((len(x), width)),
            scalar(rng),
        ]
        options[pick(rng, ["features", "dual_features"])] = pick(rng, made)
    problem = ask(lambda: vf.Problem(log, **options))
    ask(repr, problem)
    if {"features", "dual_features"} & options.keys():
        ask(problem.moments)
        return None
    return _check_moments(problem, expected, options)


def _check_moments(problem: Any, expected: Log, options: dict[str, Any]) -> str | None:
    """A and b of a problem on the observations against plain loops."""
    A, b, _ = ask(problem.moments)
    d, steps = len(expected.steps[0].obs), expected.steps
    wanted_A, wanted_b, size_A, size_b = np.zeros((d, d)), np.zeros(d), np.zeros((d, d)), np.zeros(d)
    u, bound = np.zeros(d), np.zeros(d)
    discount, trace = float(options["discount"]), float(options["trace"])
    with np.errstate(all="ignore"):
        for t, step in enumerate(steps):
            phi = np.array(step.obs)
            after = np.zeros(d) if step.next is None else discount * np.array(step.next)
            carried = trace * discount * (t > 0 and steps[t - 1].episode == step.episode)
            u, bound = step.ratio * (phi + carried * u), step.ratio * (np.abs(phi) + carried * bound)
            wanted_A += np.outer(u, phi - after) / len(steps)
            size_A += np.outer(bound, np.abs(phi) + np.abs(after)) / len(steps)
            wanted_b += u * step.reward / len(steps)
            size_b += bound * abs(step.reward) / len(steps)
    dead = problem.dead
    wanted_A[dead], wanted_A[:, dead], wanted_b[dead] = 0, 0, 0
    expect(np.isfinite(A).all() and np.isfinite(b).all(), "the moments are not finite")
    expect((np.abs(A - wanted_A) <= 1e-9 * size_A).all(), "A differs from plain loops")
    expect((np.abs(b - wanted_b) <= 1e-9 * size_b).all(), "b differs from plain loops")
    return RIGHT


def rows_case(rng: Rng, folder: Path) -> str | None:
    """`Problem.from_rows` with odd arrays."""
    m, n, d = int(rng.integers(1, 8)), int(rng.integers(1, 15)), int(rng.integers(1, 4))
    arguments: dict[str, Any] = {
        "Phi": np.round(rng.normal(size=(m, d)), 2), "now": rng.integers(0, m, n), "next": rng.integers(-1, m, n),
        "reward": np.round(rng.normal(size=n), 2), "discount": pick(rng, [0.9, np.full(n, 0.5)]),
    }  # fmt: skip
    if chance(rng, 0.5):
        arguments |= {"ratio": np.round(rng.uniform(0, 2, n), 2), "episode": np.sort(rng.integers(0, 3, n))}
    if chance(rng, 0.2):
        arguments["dual_rows"] = np.round(rng.normal(size=(m, d + 1)), 2)
    arguments = mutate_arguments(rng, arguments, ("trace", "ridge", "metric"))
    problem = ask(lambda: vf.Problem.from_rows(**arguments))
    ask(repr, problem)
    A, b, C = ask(problem.moments)
    expect(all(np.isfinite(part).all() for part in (A, b, C)), "the moments are not finite")
    if chance(rng, 0.3):
        result = ask(vf.solve, problem, "auto", max_passes=50)
        expect(np.isfinite(result.theta).all(), f"theta is not finite ({result.status})")
    return None


def stop_after(seconds: float) -> Callable[[Any], bool]:
    """A callback that ends a solve whose budget is very large."""
    deadline = time.monotonic() + seconds
    return lambda progress: time.monotonic() > deadline


def solve_case(rng: Rng, folder: Path) -> str | None:
    """`solve` with every solver, odd options, and data of any magnitude."""
    log, expected = random_log(rng)
    discount, trace = pick(rng, [0.0, 0.5, 0.9, 0.99]), pick(rng, [0.0, 0.0, 0.5, 1.0])
    ridge = pick(rng, [0.0, 0.0, 1e-6, 1.0])
    problem = ask(lambda: vf.Problem(log, discount=discount, trace=trace, ridge=ridge))
    name = pick(rng, vf.solvers.names())
    options: dict[str, Any] = {
        "tol": pick(rng, [1e-3, 1e-6, 1e-8]),
        "max_passes": MAX_PASSES[name in SLOW_SOLVERS],
        "seed": 1,
    }
    options["callback"] = stop_after(MAX_SOLVE_SECONDS)
    solver: Any = name
    draw = rng.random()
    if draw < 0.3:
        option = pick(rng, ["tol", "max_passes", "max_seconds", "seed", "init", "reference"])
        starts = [scalar(rng), odd_array(rng, np.ones(problem.d)), (np.ones(problem.d), None)]
        options[option] = pick(rng, starts) if option in ("init", "reference") else scalar(rng)
    elif draw < 0.45:
        kind = vf.solvers.registry()[name]
        settings = [one.name for one in fields(kind)]
        if settings:
            solver = ask(lambda: kind(**{pick(rng, settings): scalar(rng)}))
    elif draw < 0.5:
        solver = scalar(rng)
    result = ask(vf.solve, problem, solver, **options)
    ask(repr, result)
    tol = options["tol"]
    if not isinstance(tol, int | float) or options.get("init") is not None:
        return None
    try:
        check_solution(expected, result, float(tol) + 1e-13, discount=discount, trace=trace, ridge=ridge)
    except Unknown:
        return None
    return RIGHT if result.status == "converged" else None


def moments_case(rng: Rng, folder: Path) -> str | None:
    """`Moments` of the episodes of a log, in any order, has the solution of the log; or odd arguments."""
    log, expected = random_log(rng)
    options: dict[str, Any] = {"discount": pick(rng, [0.0, 0.5, 0.9]), "trace": pick(rng, [0.0, 0.5, 1.0])}
    ridge: Any = pick(rng, [0.0, 1e-6, 1.0])
    features: Any = "one-hot" if log.has_numbered_states else "identity"
    if chance(rng, 0.4):
        odd = pick(rng, ["discount", "trace", "features", "ridge"])
        features, ridge = (scalar(rng) if odd == "features" else features), (scalar(rng) if odd == "ridge" else ridge)
        options |= {odd: scalar(rng)} if odd in options else {}
    one, other = (ask(lambda: vf.Moments(features, **options)) for _ in range(2))
    if log.has_numbered_states:
        ask(one.add, pick(rng, [log, scalar(rng)]))
    for place, episode in enumerate(rng.permutation(log.episodes)):
        if not log.has_numbered_states:  # of which a part may lack some
            ask((one if place % 2 else other).add, log.select(episode))
    result = ask(lambda: one.merge(other).solve(ridge=ridge))
    expect(np.isfinite(result.theta).all(), f"theta is not finite ({result.status})")
    if log.has_numbered_states:
        return None
    try:
        check_solution(expected, result, 1e-6, ridge=float(ridge), **options)
    except Unknown:
        return None
    return RIGHT if result.status == "converged" else None


# ---- datasets --------------------------------------------------------------------------------------------------


def datasets_case(rng: Rng, folder: Path) -> str | None:
    entries: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "random_mdp": (vf.datasets.random_mdp, {"states": 4, "actions": 2, "features": 3, "seed": 0}),
        "ar1_log": (vf.datasets.ar1_log, {"steps": 10, "dimensions": 2, "memory": 0.9, "seed": 0}),
        "baird_log": (vf.datasets.baird_log, {"steps": 10, "seed": 0}),
        "boyan_log": (vf.datasets.boyan_log, {"episodes": 2, "seed": 0}),
        "random_walk_log": (vf.datasets.random_walk_log, {"episodes": 2, "states": 5, "behaviour": 0.5, "target": 0.7,
        "seed": 0}),
        "random_walk_value": (vf.datasets.random_walk_value, {"states": 5, "target": 0.7, "discount": 1.0}),
        "fourier_features": (vf.datasets.fourier_features, {"count": 3, "dimensions": 2, "spread": 1.0, "seed": 0}),
    }  # fmt: skip
    function, arguments = pick(rng, list(entries.values()))
    name = pick(rng, list(arguments))
    arguments[name] = scalar(rng) if chance(rng, 0.5) else number(rng)
    made = ask(lambda: function(**arguments))
    if isinstance(made, vf.datasets.RandomMDP):
        made = ask(made.log, 5)
    if isinstance(made, vf.Transitions):
        expect(len(made) > 0 and np.isfinite(made.reward).all(), "the log is empty or not finite")
    elif isinstance(made, np.ndarray):
        expect(np.isfinite(made).all(), "a value is not finite")
    return None


def compile_solvers(problem: vf.Problem | None = None) -> None:
    """Compile every solver's kernels before forking, and load them once instead of in each child."""
    problem = problem or vf.Problem(small_log(), discount=0.9)
    for name in vf.solvers.names():
        vf.solve(problem, name, max_passes=2)
    vf.datasets.random_mdp(4, 2, 3).log(5)


TARGETS = [
    Target("transitions", transitions_case),
    Target("problem", problem_case),
    Target("from_rows", rows_case),
    Target("solve", solve_case, prepare=compile_solvers),
    Target("moments", moments_case, prepare=compile_solvers),
    Target("datasets", datasets_case, prepare=compile_solvers),
]
