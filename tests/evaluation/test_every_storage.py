"""One log in memory, streamed, on the workers of a cluster and on a device: every solver gives the same evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import valuefit as vf
from helpers.streamed import even_policy, in_shards, log_with_actions
from helpers.workers import two_workers
from valuefit.data import shards
from valuefit.problem.exact import Exact

SETTINGS: dict[str, Any] = {"features": "fourier:order=3", "discount": 0.9, "policy": even_policy}
STORAGES = ["memory", "streamed", "dask", *(["torch"] if find_spec("torch") else [])]
TOLS = {"lstd": 1e-12, "krylov": 1e-8, "pdbg": 1e-8, "svrg": 1e-8}
REFUSED = [(where, solver) for where in STORAGES[1:] for solver in ("saga", "catalyst", "gtd2")]
REFUSED += [(where, "svrg") for where in ("streamed", "dask")]
ASKED = 20  # observations whose values have intervals


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


@pytest.fixture(scope="module")
def log() -> vf.Transitions:
    return log_with_actions()


@pytest.fixture(scope="module")
def expected(log: vf.Transitions) -> vf.Evaluation:
    return vf.evaluate(log, solver="lstd", tol=1e-12, **SETTINGS)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with two_workers() as client:
        yield client


@pytest.fixture
def stored(request: pytest.FixtureRequest, log: vf.Transitions, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """The log in the storage that the test names, and the arguments of `evaluate` that go with it."""
    where: str = request.param
    if where in ("memory", "torch"):
        return log, {"device": "cpu"} if where == "torch" else {}
    client = request.getfixturevalue("client") if where == "dask" else None
    sharded = in_shards(log, tmp_path, "native")
    assert len(sharded.shards) >= 5
    return sharded, {"client": client}


@pytest.mark.filterwarnings("ignore:The episodes count as")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("stored", "solver"),
    [(where, solver) for where in STORAGES for solver in TOLS if (where, solver) not in REFUSED],
    indirect=["stored"],
)
def test_every_solver_gives_the_evaluation_of_the_log_in_memory(
    stored: tuple[Any, dict[str, Any]], solver: str, expected: vf.Evaluation
) -> None:
    source, where = stored
    found = vf.evaluate(source, solver=solver, tol=TOLS[solver], **where, **SETTINGS)
    assert (found.result.solver, found.result.status) == (solver, "converged")
    exact = Exact(expected.problem)
    assert exact.rank == expected.problem.d == 16
    assert exact.gap(found.result.theta) <= TOLS[solver]
    if solver == "lstd":
        apart = np.linalg.norm(found.result.theta - expected.result.theta)
        assert apart <= 1e-8 * np.linalg.norm(expected.result.theta)
    value, same = found.policy_value, expected.policy_value
    error, share = same.standard_error, 1e-7 if solver == "lstd" else 0.01
    assert value.estimate == pytest.approx(same.estimate, abs=share * error)
    assert value.standard_error == pytest.approx(error, rel=share)
    assert value.interval == pytest.approx(same.interval, abs=share * error)
    assert value.effective_episodes == pytest.approx(same.effective_episodes, rel=share)
    assert found.verdict == expected.verdict
    assert [(one.name, one.outcome) for one in found.checks] == [(one.name, one.outcome) for one in expected.checks]
    if found.whole is not None:  # as of a log that is larger than its sample, which intervals then read again
        found = replace(found, fit=replace(found.fit, log=found.log[:600]))
    seen = expected.log.observations[:ASKED]
    sizes = np.ptp(expected.value_interval(seen), axis=1) / 4
    assert (np.abs(found.value(seen) - expected.value(seen)) <= share * sizes).all()
    for simultaneous in (False, True):
        bands = [one.value_interval(seen, simultaneous=simultaneous) for one in (found, expected)]
        assert (np.abs(bands[0] - bands[1]) <= share * np.ptp(bands[1], axis=1)[:, None]).all()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("stored", "solver"), REFUSED, indirect=["stored"])
def test_methods_of_single_rows_are_refused_outside_memory(stored: tuple[Any, dict[str, Any]], solver: str) -> None:
    source, where = stored
    what, able = ("device", ", svrg") if "device" in where else ("shards", "")
    with pytest.raises(ValueError, match=rf"{solver} cannot solve a problem with {what}: .*lstd, krylov, pdbg{able}\."):
        vf.evaluate(source, solver=solver, **where, **SETTINGS)
