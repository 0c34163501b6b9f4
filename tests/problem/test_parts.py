from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import valuefit as vf
from helpers.streamed import even_policy, in_shards, log_with_actions
from valuefit.data import shards
from valuefit.problem.parts import Part, Parts, add, read_ahead

FOURIER = {"features": "fourier:order=3"}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two worker processes of a real scheduler."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster) as found,
    ):
        yield found


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy": even_policy},
        {"policy": even_policy, "values": "state-action"},
        {"solver": "krylov", "tol": 1e-10},
    ],
    ids=["on-policy", "ratios", "state-action", "krylov"],
)
def test_workers_give_the_answer_of_this_process(client: Client, settings: dict[str, Any], tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(), tmp_path, "parquet")
    here = vf.evaluate(sharded, discount=0.9, **FOURIER, **settings)
    there = vf.evaluate(sharded, discount=0.9, client=client, **FOURIER, **settings)
    assert there.policy_value.estimate == pytest.approx(here.policy_value.estimate, rel=1e-8)
    assert there.policy_value.standard_error == pytest.approx(here.policy_value.standard_error, rel=1e-7)
    assert there.verdict == here.verdict
    assert any("workers of a cluster" in note for note in there.notes)


def one_if_alone(part: Part, *, folder: Path) -> tuple[int]:
    """Kills the worker of the third shard, once."""
    marker = folder / "killed"
    if part.place[0] == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return (part.problem.n,)


class Make:
    """The problem of a part, by observations alone."""

    def __call__(self, log: vf.Transitions) -> vf.Problem:
        return vf.Problem(log, discount=0.9, part=True)


@pytest.mark.filterwarnings("default")
def test_a_killed_worker_does_not_change_the_sum(client: Client, tmp_path: Path) -> None:
    from functools import partial

    log = log_with_actions()
    parts = Parts(in_shards(log, tmp_path, "native").shards, Make(), 10_000, client)
    assert parts.sum(partial(one_if_alone, folder=tmp_path)) == (len(log),)
    assert (tmp_path / "killed").exists()
    deadline = time.monotonic() + 30
    while len(client.scheduler_info()["workers"]) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.filterwarnings("default")
def test_a_shard_that_no_worker_can_read_is_named(client: Client, tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(), tmp_path, "parquet")
    (tmp_path / "log.parquet").unlink()
    with pytest.raises(ValueError, match=r"In rows 0 to \d+ of .*log\.parquet"):
        Parts(sharded.shards[:1], Make(), 10_000, client).sum(one_if_alone)


def test_sums_add_entries_and_join_lists() -> None:
    found = add((1, np.array([1.0, 2.0]), ["a"]), (2, np.array([0.5, 0.5]), ["b"]))
    assert found[0] == 3
    np.testing.assert_array_equal(found[1], [1.5, 2.5])
    assert found[2] == ["a", "b"]


def test_the_next_shard_is_read_while_one_is_used(tmp_path: Path) -> None:
    order = []

    class Recorded:
        def __init__(self, number: int) -> None:
            self.number = number

        def read(self) -> int:
            order.append(("read", self.number))
            return self.number

    for log in read_ahead([Recorded(number) for number in range(3)]):  # type: ignore[list-item]
        time.sleep(0.05)
        order.append(("used", log))
    assert order.index(("read", 1)) < order.index(("used", 0))
    assert order.index(("read", 2)) < order.index(("used", 1))
    assert [entry for entry in order if entry[0] == "used"] == [("used", number) for number in range(3)]
