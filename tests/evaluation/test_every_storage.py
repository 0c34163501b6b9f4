"""One log in memory, streamed, on the workers of a cluster and on a device: every evaluation is the one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import valuefit as vf
from helpers.missing_pair import POLICY, moves
from helpers.streamed import KINDS, even_policy, in_shards, log_with_actions
from helpers.workers import two_workers
from valuefit.data import shards
from valuefit.inference import error_estimate
from valuefit.problem.exact import Exact

FOURIER = {"features": "fourier:order=3"}
SETTINGS: dict[str, Any] = {**FOURIER, "discount": 0.9, "policy": even_policy}
STORAGES = [*KINDS, "dask", *(["torch"] if find_spec("torch") else [])]
TOLS = {"lstd": 1e-12, "krylov": 1e-8, "pdbg": 1e-8, "svrg": 1e-8}
STEPPED = [where for where in STORAGES if where not in KINDS[1:]]  # where each solver is asked for
REFUSED = [(where, solver) for where in STEPPED for solver in ("saga", "catalyst", "gtd2")]
REFUSED += [(where, "svrg") for where in ("memory", "dask")]
ASKED = 20  # observations whose values have intervals
ROUTES: dict[str, dict[str, Any]] = {
    "on-policy": {},
    "ratios": {"policy": even_policy},
    "state-action": {"policy": even_policy, "values": "state-action"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": FOURIER,
    "trace": {**FOURIER, "trace": 0.7},
    "ridge": {**FOURIER, "ridge": 0.01},
    "cr1": {**FOURIER, "interval": "cr1"},
    "cr1 and ridge": {**FOURIER, "interval": "cr1", "ridge": 0.01},
    "starts": {**FOURIER, "starts": np.array([[0.0, 0.0], [1.0, -1.0]])},
    "dependent features": {"features": lambda x: np.column_stack([np.ones(len(x)), x, x.sum(axis=1)])},
    "kernel": {"features": "kernel:landmarks=20"},
    "auto": {},
}
CASES = [*((route, option, "native") for route in ROUTES for option in OPTIONS),
         *(("state-action", "ridge", where) for where in STORAGES if where != "native")]  # fmt: skip


OF_ALL_EPISODES = {  # checks whose numbers are summed over a log in parts
    "reachable range", "skewness", "small-sample bias", "negative occupancy", "effective steps", "ridge",
    "unseen actions", "effective episodes",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


@cache
def log() -> vf.Transitions:
    return log_with_actions()


@cache
def in_memory(route: str, option: str) -> vf.Evaluation:
    return vf.evaluate(log(), discount=0.9, tol=1e-12, **ROUTES[route], **OPTIONS[option])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with two_workers() as client:
        yield client


def stored(where: str, request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    """The log in the storage of this name, and the arguments of `evaluate` that go with it."""
    if where == "torch":
        return log(), {"device": "cpu"}
    client = request.getfixturevalue("client") if where == "dask" else None
    sharded = in_shards(log(), request.getfixturevalue("tmp_path"), "native" if where == "dask" else where)
    assert len(sharded.shards) >= 5
    return sharded, {"client": client}


def read_again(evaluation: vf.Evaluation) -> vf.Evaluation:
    """The evaluation as of a log that is larger than its sample, which intervals and comparisons then read again."""
    return (
        evaluation
        if evaluation.whole is None
        else replace(evaluation, fit=replace(evaluation.fit, log=evaluation.log[:600]))
    )


@pytest.mark.filterwarnings("ignore:The episodes count as")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("route", "option", "where"), CASES)
def test_every_route_and_option_gives_the_evaluation_of_the_log_in_memory(
    route: str, option: str, where: str, request: pytest.FixtureRequest
) -> None:
    source, options = stored(where, request)
    found = vf.evaluate(source, discount=0.9, tol=1e-12, **options, **ROUTES[route], **OPTIONS[option])
    expected = in_memory(route, option)
    assert found.result.status == "converged"
    assert_same_value(found, expected, 1e-7)
    for one, other in zip(found.checks, expected.checks, strict=True):
        assert (one.name, one.outcome) == (other.name, other.outcome)
        if one.name in OF_ALL_EPISODES and other.statistic is not None:
            assert one.statistic == pytest.approx(other.statistic, rel=1e-5, abs=1e-9)
    found = read_again(found)
    assert_same_weights(found, expected)
    assert_same_intervals(found, expected, 1e-6)


def assert_same_value(found: vf.Evaluation, expected: vf.Evaluation, share: float) -> None:
    """Up to this share of the standard error."""
    value, same = found.policy_value, expected.policy_value
    assert (value.method, value.starts) == (same.method, same.starts)
    assert found.verdict == expected.verdict
    if same.standard_error is None or same.interval is None:
        assert (value.standard_error, value.interval) == (None, None)
        assert value.estimate == pytest.approx(same.estimate, rel=1e-6)
        return
    error = same.standard_error
    assert value.estimate == pytest.approx(same.estimate, abs=share * error)
    assert value.standard_error == pytest.approx(error, rel=share)
    assert value.interval == pytest.approx(same.interval, abs=10 * share * error)
    assert value.effective_episodes == pytest.approx(same.effective_episodes, rel=share)
    assert value.effective_sample_size == pytest.approx(same.effective_sample_size)


def assert_same_weights(found: vf.Evaluation, expected: vf.Evaluation) -> None:
    assert (found.weights is None) == (expected.weights is None) == (expected.problem.d > 20)
    for one, other in zip(found.weights or [], expected.weights or [], strict=True):
        assert one["name"] == other["name"]
        assert (one["standard_error"] is None) == (other["standard_error"] is None)
        if other["standard_error"] is not None:
            size = other["standard_error"]
            assert one["standard_error"] == pytest.approx(size, rel=1e-6)
            assert one["estimate"] == pytest.approx(other["estimate"], abs=1e-6 * size)
            assert one["interval"] == pytest.approx(other["interval"], abs=1e-5 * size)


def assert_same_intervals(found: vf.Evaluation, expected: vf.Evaluation, share: float) -> None:
    """Of values and of all of them at once, up to this share of their widths; some observation is far from the log."""
    seen = np.vstack([expected.log.observations[:ASKED], [[3.0, -2.0]]])
    actions = np.arange(len(seen)) % 2 if expected.values == "state-action" else None
    for options in ({}, {"level": 0.5}, {"simultaneous": True}, {"actions": actions}):
        inside, outside = (one.value_interval(seen, **options) for one in (found, expected))
        np.testing.assert_array_equal(np.isfinite(inside), np.isfinite(outside))
        known = np.isfinite(outside).all(axis=1)
        assert known.any()
        width = np.diff(outside[known], axis=1)
        assert (np.abs(found.value(seen) - expected.value(seen))[known] <= share * width[:, 0]).all()
        assert (np.abs(inside[known] - outside[known]) <= share * width).all()


# ---- differences ---------------------------------------------------------------------------------------------------


DIFFERENT: dict[str, dict[str, Any]] = {
    "logged": FOURIER,
    "ratios": {"features": "kernel:landmarks=12", "policy": even_policy},
    "state-action": {"features": "fourier:order=2", "policy": even_policy, "values": "state-action"},
    "trace and ridge": {**FOURIER, "trace": 0.5, "ridge": 0.01},
}


@pytest.mark.parametrize("where", ["native", "memory", "dask"])
@pytest.mark.parametrize("interval", ["cr3", "cr1"])
def test_differences_are_those_of_the_log_in_memory(
    interval: str, where: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_estimate, "MATERIAL_SIZE", 0.0)  # so that intervals allow for any bias
    source, options = stored(where, request)
    asked = {name: {**one, "interval": interval, "discount": 0.9} for name, one in DIFFERENT.items()}
    found = {name: read_again(vf.evaluate(source, **one, **options)) for name, one in asked.items()}
    expected = {name: vf.evaluate(log(), tol=1e-12, **one) for name, one in asked.items()}
    several, same = vf.compare(found), vf.compare(expected)
    for pair, other in zip(several.pairs, same.pairs, strict=True):
        assert_same_difference(pair, other)
        assert pair.method == interval
        assert bool(pair.bias) == (interval == "cr3")
    for a, b in list(combinations(DIFFERENT, 2))[:2]:
        assert_same_difference(vf.compare(found[a], found[b]), vf.compare(expected[a], expected[b]))
    assert several.summary().splitlines()[:3] == same.summary().splitlines()[:3]


def assert_same_difference(found: Any, expected: Any) -> None:
    assert (found.names, found.method) == (expected.names, expected.method)
    assert found.estimate == pytest.approx(expected.estimate, abs=1e-8)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-6)
    assert found.effective_episodes == pytest.approx(expected.effective_episodes, rel=1e-6)
    assert found.interval == pytest.approx(expected.interval, abs=1e-6 * expected.standard_error)
    assert found.bias == pytest.approx(expected.bias, abs=1e-6 * expected.standard_error)
    assert found.p_value == pytest.approx(expected.p_value, rel=1e-4)
    assert found.unseen == pytest.approx(expected.unseen, rel=1e-8)


def test_pairs_without_data_are_allowed_for_as_in_memory(tmp_path: Path) -> None:
    steps, other = moves(np.random.default_rng(1), noise=0.1), np.array([[0.4, 0.6], [0.4, 0.6], [0.95, 0.05]])
    vf.save(steps, tmp_path / "log")
    settings = {"features": "one-hot", "values": "state-action", "discount": 0.9}
    here, parts = (
        [vf.evaluate(source, policy=policy, **settings) for policy in (POLICY, other)]
        for source in (steps, vf.load(tmp_path / "log", memory="stream"))
    )
    assert here[0].policy_value.unseen[0] < 0
    assert parts[0].policy_value.interval == pytest.approx(here[0].policy_value.interval, rel=1e-8)
    assert_same_difference(vf.compare(*parts), vf.compare(*here))


# ---- solvers -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The episodes count as")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("where", "solver"), [(where, solver) for where in STEPPED for solver in TOLS if (where, solver) not in REFUSED]
)
def test_every_solver_gives_the_evaluation_of_the_log_in_memory(
    where: str, solver: str, request: pytest.FixtureRequest
) -> None:
    source, options = stored(where, request)
    found = vf.evaluate(source, solver=solver, tol=TOLS[solver], **options, **SETTINGS)
    expected = in_memory("ratios", "plain")
    assert (found.result.solver, found.result.status) == (solver, "converged")
    exact = Exact(expected.problem)
    assert exact.rank == expected.problem.d == 16
    assert exact.gap(found.result.theta) <= TOLS[solver]
    share = 1e-7 if solver == "lstd" else 0.01
    assert_same_value(found, expected, share)
    assert [(one.name, one.outcome) for one in found.checks] == [(one.name, one.outcome) for one in expected.checks]
    assert_same_intervals(read_again(found), expected, share)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("where", "solver"), REFUSED)
def test_methods_of_single_rows_are_refused_outside_memory(
    where: str, solver: str, request: pytest.FixtureRequest
) -> None:
    source, options = stored(where, request)
    what, able = ("device", ", svrg") if "device" in options else ("shards", "")
    with pytest.raises(ValueError, match=rf"{solver} cannot solve a problem with {what}: .*lstd, krylov, pdbg{able}\."):
        vf.evaluate(source, solver=solver, **options, **SETTINGS)
