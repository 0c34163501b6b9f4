"""`select`: the choice against its table, the value against LSTD in NumPy; odd candidates, options, files of scores."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import valuefit as vf
from fuzz.calls import compile_solvers, random_log
from fuzz.feature_calls import feature_spec
from fuzz.mutators import Rng, chance, mutate_bytes, odd_array, pick, pick_entry, scalar
from fuzz.outcome import RIGHT, ask, expect
from fuzz.runner import Target
from fuzz.stored import POLICY, small_log

OPTIONS = (
    "discount", "policy", "values", "folds", "rule", "cross_fit", "starts", "columns", "cluster", "level", "seed",
    "jobs", "callback", "progress",
)  # fmt: skip
FOLDS = 2  # the fewest, which need 8 episodes
STEPS = 48  # in 12 episodes
REJECTED = "do not use"
MAX_CONDITION = 1e8  # of the equations that the reference solves
VALUE_TOL = 1e-6  # of the value, relative to its largest term


def linear(observations: Any) -> Any:
    """A constant and the observation."""
    return np.column_stack([np.ones(len(observations)), observations])


def quadratic(observations: Any) -> Any:
    return np.column_stack([linear(observations), np.square(observations)])


FEATURES = (linear, quadratic)


def select_case(rng: Rng, folder: Path) -> str | None:
    """A choice by `select` is that of its table and has the value of exact LSTD; or odd arguments."""
    draw = rng.random()
    if draw < 0.4:
        return _check_choice(rng)
    if draw < 0.6:
        return _check_scores(rng, folder)
    labels = chance(rng, 0.5)
    log: Any = small_log(labels=labels, n=STEPS)
    options: dict[str, Any] = {"discount": 0.9, "folds": FOLDS, "cross_fit": chance(rng, 0.5)}
    if labels:
        options |= {"policy": POLICY, "values": pick(rng, ["state", "state-action"])}
    candidates: Any = [{"features": "one-hot" if labels else "identity"}, {"ridge": 0.1}]
    if chance(rng, 0.5):
        option, value = pick(rng, OPTIONS), odd_array(rng, log.episode // 2) if chance(rng, 0.2) else scalar(rng)
        options[option] = None if option == "callback" and callable(value) else value  # it may raise anything
    else:
        candidates = _odd_candidates(rng, candidates)
    if chance(rng, 0.1):
        log = scalar(rng) if chance(rng, 0.5) else random_log(rng)[0]
    _check_selection(ask(lambda: vf.select(log, candidates, **options)), options.get("rule", "best"))
    return None


def _odd_candidates(rng: Rng, candidates: list[dict[str, Any]]) -> Any:
    """A list or a grid in which something is replaced."""
    made: Any = candidates
    if chance(rng, 0.3):
        made = {"features": ["identity", "one-hot"], "ridge": [0.0, 0.1]}
    tree, key = pick_entry(rng, made)
    if isinstance(tree, dict) and chance(rng, 0.5):
        key = pick(rng, ["features", "trace", "ridge", "discount", 3, None])
    tree[key] = feature_spec(rng) if chance(rng, 0.3) else scalar(rng)
    return scalar(rng) if chance(rng, 0.1) else made


# ---- the choice ----------------------------------------------------------------------------------------------


def _check_choice(rng: Rng) -> str | None:
    """Of candidates whose values are computed in NumPy."""
    log = _log(rng)
    candidates = [
        {"features": pick(rng, FEATURES), "trace": pick(rng, [0.0, 0.0, 0.5, 1.0]), "ridge": pick(rng, [0, 0.0, 0.01])}
        for _ in range(int(rng.integers(1, 4)))
    ]
    rule, discount = pick(rng, ["best", "best", "one-standard-error"]), pick(rng, [0.0, 0.5, 0.9])
    options = {"rule": rule, "discount": discount, "cross_fit": chance(rng, 0.5), "seed": int(rng.integers(9))}
    found = ask(lambda: vf.select(log, candidates, folds=FOLDS, **options))
    _check_selection(found, rule)
    parts = {episode for done in found.evaluations for episode in done.log.episode.tolist()}
    expect(parts == set(log.episode.tolist()), "an episode is in neither half")
    wanted = [
        _policy_value(done.log, settings, discount)
        for done, settings in zip(found.evaluations, found.best, strict=True)
    ]
    if None in wanted:
        return None
    for done, value in zip(found.evaluations, wanted, strict=True):
        _expect_value(done.policy_value, value)
    _expect_value(found.policy_value, (np.mean([one for one, _ in wanted]), max(size for _, size in wanted)))
    return RIGHT


def _log(rng: Rng) -> vf.Transitions:
    """Twelve or more episodes of one to six steps, some truncated, on-policy or with ratios."""
    lengths = rng.integers(1, 7, int(rng.integers(12, 20)))
    episode = np.repeat(np.arange(len(lengths)), lengths)
    n, last = len(episode), np.append(np.diff(episode) != 0, True)
    terminated = last & (rng.random(n) < 0.7)
    scale, shape = pick(rng, [1.0, 1.0, 1.0, 1e-6, 1e6]), (n, int(rng.integers(1, 3)))
    return vf.Transitions.from_arrays(
        np.round(rng.normal(size=shape), 2),
        np.round(rng.normal(size=n), 2) * scale,
        next_observation=np.round(rng.normal(size=shape), 2), terminated=terminated, truncated=last & ~terminated,
        episode=episode, ratio=np.round(rng.uniform(0.1, 2, n), 2) if chance(rng, 0.4) else None,
    )  # fmt: skip


def _check_selection(found: vf.Selection, rule: str) -> None:
    """Its numbers are finite, it is shown, and each half has the best candidate that is not rejected."""
    value = found.policy_value
    expect(math.isfinite(value.estimate), f"the policy value is {value.estimate}")
    error = value.standard_error
    expect(error is None or (math.isfinite(error) and error >= 0), f"the standard error is {error}")
    mean = np.mean([done.policy_value.estimate for done in found.evaluations])
    expect(np.isclose(value.estimate, mean, rtol=1e-12, atol=0), f"{value.estimate} is not the mean {mean} of halves")
    ask(repr, found)
    ask(found.summary)
    ask(lambda: json.dumps(found.to_dict(), allow_nan=False))
    for half, settings in enumerate(found.best, start=1):
        rows = [row for row in found.table if row["half"] == half]
        (chosen,) = (row for row in rows if row["chosen"])
        expect(chosen["settings"] is settings, "the table marks another candidate than the chosen one")
        accepted = [row for row in rows if row["verdict"] != REJECTED] or rows
        expect(chosen in accepted, "a rejected candidate is chosen next to one that is not")
        # a criterion that is known ten times less precisely than the smallest one is large counts last
        known = min(abs(row["criterion"]) + row["standard_error"] for row in rows)
        precise = [row for row in accepted if row["standard_error"] <= 10 * known] or accepted
        best = min(row["criterion"] for row in precise)
        expect(rule != "best" or chosen["criterion"] == best, f"criterion {chosen['criterion']}, the best has {best}")


def _policy_value(log: vf.Transitions, settings: dict[str, Any], discount: float) -> tuple[float, float] | None:
    """The mean over the first observations of the value by LSTD, and the size of its terms; None if it is undecided."""
    rows = settings["features"](log.observations)
    x, after = rows[log.now], discount * np.where(log.terminated[:, None], 0.0, rows[log.next])
    u, carried = np.zeros_like(x), np.zeros(x.shape[1])
    for t in range(len(x)):
        carried = discount * settings["trace"] * carried if not log.begins[t] else np.zeros(x.shape[1])
        u[t] = carried = log.ratio[t] * (x[t] + carried)
    A, C, b = u.T @ (x - after) / len(x), x.T @ x / len(x), u.T @ log.reward / len(x)
    if np.linalg.cond(C) > MAX_CONDITION:
        return None
    H = A.T @ np.linalg.solve(C, A) + settings["ridge"] * np.eye(len(A))
    if np.linalg.cond(H) > MAX_CONDITION:
        return None
    theta = np.linalg.solve(H, A.T @ np.linalg.solve(C, b))
    terms = x[log.begins] * theta
    return float(terms.sum(axis=1).mean()), float(np.abs(terms).max())


def _expect_value(value: vf.PolicyValue, wanted: tuple[float, float]) -> None:
    error = abs(value.estimate - wanted[0])
    slack = VALUE_TOL * wanted[1] + 2 * (value.solver_error or 0.0)
    expect(error <= slack, f"the policy value is {value.estimate}, LSTD in NumPy gives {wanted[0]}")


# ---- the file of scores --------------------------------------------------------------------------------------


def _select_saved(path: Path) -> vf.Selection:
    candidates = [{"features": linear}, {"features": linear, "ridge": 0.1}]
    return vf.select(small_log(n=STEPS), candidates, discount=0.9, folds=FOLDS, cross_fit=False, save=path)


@cache
def _saved(folder: Path) -> tuple[bytes, vf.Selection]:
    """A file of scores and the selection that wrote it."""
    path = folder / "written.json"
    found = _select_saved(path)
    return path.read_bytes(), found


def _check_scores(rng: Rng, folder: Path) -> str | None:
    """A damaged file of scores is refused, or the scores that are read from it are used."""
    data, wanted = _saved(folder)
    path = folder / "scores.json"
    path.write_bytes(data)
    if chance(rng, 0.2):
        found = ask(_select_saved, path)
        scores = [[row["criterion"] for row in one.table] for one in (found, wanted)]
        expect(scores[0] == scores[1] and found.policy_value == wanted.policy_value, "stored scores change the choice")
        return RIGHT
    if chance(rng, 0.5):
        facts = json.loads(data)
        tree, key = pick_entry(rng, facts)
        tree[key] = pick(rng, [None, "x", [], {}, True, -1, 1e300, 10**400, 0.5, [1.0], {"a": 1}])
        path.write_text(json.dumps(facts))
    else:
        path.write_bytes(mutate_bytes(rng, data))
    _check_selection(ask(_select_saved, path), "best")
    return None


TARGETS = [Target("select", select_case, prepare=compile_solvers)]
