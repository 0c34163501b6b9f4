from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import valuefit as vf
from helpers.command_line import facts
from helpers.small_mdp import STATES, SmallMDP
from helpers.streamed import by_episode, even_policy, frame_of, in_shards, log_with_actions
from helpers.workers import two_workers
from valuefit.data import shards
from valuefit.rows.compile import worth_compiling
from valuefit.streaming.parts import PART_COPIES, Part, Parts, add, each_shard, part_sizes, read_ahead
from valuefit.streaming.sharded import ShardedProblem
from valuefit.threads import ONE_BLAS_THREAD

PATIENCE_SECONDS = 60
FOURIER = {"features": "fourier:order=3"}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with two_workers() as client:
        yield client


@pytest.fixture
def client(cluster: Client) -> Client:
    """With two workers, also after a test that killed one or started a third."""
    cluster.cluster.scale(2)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(cluster.scheduler_info()["workers"]) != 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    return cluster


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy": even_policy, "values": "state-action"},
    ],
    ids=["on-policy", "state-action"],
)
def test_workers_give_the_answer_of_this_process(client: Client, settings: dict[str, Any], tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(), tmp_path, "parquet")
    here = vf.evaluate(sharded, discount=0.9, **FOURIER, **settings)
    there = vf.evaluate(sharded, discount=0.9, client=client, **FOURIER, **settings)
    assert there.policy_value.estimate == pytest.approx(here.policy_value.estimate, rel=1e-8)
    assert there.policy_value.standard_error == pytest.approx(here.policy_value.standard_error, rel=1e-7)
    assert there.verdict == here.verdict
    assert any("workers of a cluster" in note for note in there.notes)


@pytest.mark.filterwarnings("ignore:The episodes count as")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("source", ["parquet", "frame"])
def test_workers_give_the_intervals_and_differences_of_the_log_in_memory(
    client: Client, source: str, tmp_path: Path
) -> None:
    log = log_with_actions()
    frame = by_episode(frame_of(log), 5)
    sharded = in_shards(log, tmp_path, "parquet") if source == "parquet" else frame
    settings: list[dict[str, Any]] = [{}, {"policy": even_policy, "features": "fourier:order=2"}]
    there = [vf.evaluate(sharded, discount=0.9, client=client, **{**FOURIER, **one}) for one in settings]
    there = [
        replace(one, fit=replace(one.fit, log=one.log[:600])) for one in there
    ]  # as of a log that is larger than its sample
    here = [vf.evaluate(log, discount=0.9, tol=1e-12, **{**FOURIER, **one}) for one in settings]
    found, expected = vf.compare(*there), vf.compare(*here)
    assert found.estimate == pytest.approx(expected.estimate, abs=1e-8)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-6)
    assert found.interval == pytest.approx(expected.interval, abs=1e-6 * expected.standard_error)
    seen = log.observations[:20]
    for simultaneous in (False, True):
        own, same = (one[0].value_interval(seen, simultaneous=simultaneous) for one in (there, here))
        np.testing.assert_allclose(own, same, atol=1e-6 * np.ptp(same, axis=1).min(), rtol=0)


@pytest.mark.filterwarnings("default")
def test_the_command_evaluates_on_the_workers_of_a_scheduler(client: Client, tmp_path: Path) -> None:
    vf.save(log_with_actions(), tmp_path / "log.parquet")
    words = "evaluate", tmp_path / "log.parquet", "--features", "fourier:order=3", "--discount", "0.9"
    here, there = facts(*words, "--memory", "stream"), facts(*words, "--scheduler", client.scheduler.address)
    assert there["policy_value"]["estimate"] == pytest.approx(here["policy_value"]["estimate"], rel=1e-8)
    assert there["policy_value"]["standard_error"] == pytest.approx(here["policy_value"]["standard_error"], rel=1e-7)
    assert any("on the workers of a cluster" in note for note in there["notes"])


@pytest.mark.filterwarnings("default")
def test_the_command_compares_policies_on_the_workers_of_a_scheduler(client: Client, tmp_path: Path) -> None:
    log = SmallMDP(off_policy=True, seed=1).log(40, propensities=True)
    vf.save(log, tmp_path / "log.parquet")
    np.save(tmp_path / "some.npy", np.tile([0.6, 0.4], (STATES, 1)))
    words = "compare", tmp_path / "log.parquet", "--policy", tmp_path / "some.npy", "--features", "one-hot"
    here, there = facts(*words), facts(*words, "--scheduler", client.scheduler.address)
    own, same = there["differences"][0], here["differences"][0]
    assert own["estimate"] == pytest.approx(same["estimate"], abs=1e-6 * same["standard_error"])
    assert own["standard_error"] == pytest.approx(same["standard_error"], rel=1e-6)


def test_a_client_that_is_closed_is_named(client: Client, tmp_path: Path) -> None:
    log = log_with_actions()
    other = Client(client.scheduler.address, set_as_default=False)
    found = vf.evaluate(in_shards(log, tmp_path, "parquet"), discount=0.9, client=other, **FOURIER)
    other.close()
    found = replace(found, fit=replace(found.fit, log=found.log[:600]))
    with pytest.raises(ValueError, match="Dask client that read the parts of this log is closed"):
        found.value_interval(log.observations[:2])
    with pytest.raises(ValueError, match="Dask client that read the parts of this log is closed"):
        vf.compare(found, found)


def test_a_file_that_changes_is_named_by_the_worker_that_reads_it(client: Client, tmp_path: Path) -> None:
    log = log_with_actions()
    sharded = in_shards(log, tmp_path, "files")
    vf.save(log[:100], tmp_path / "part-2.parquet", force=True)
    with pytest.raises(ValueError, match=r"part-2.parquet had [\d,]+ bytes and now has [\d,]+ since the log"):
        vf.evaluate(sharded, discount=0.9, client=client, **FOURIER)


@pytest.mark.filterwarnings("default")
def test_data_of_this_process_are_refused_by_workers(client: Client) -> None:
    log = log_with_actions(10)
    with pytest.raises(ValueError, match=r"Workers cannot read a log in memory of this process\. Save the log where"):
        vf.evaluate(vf.load(log, memory="stream"), client=client, **FOURIER)
    with pytest.raises(ValueError, match=r"client reads a log in files: load them"):
        vf.evaluate(log, client=client, **FOURIER)


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
    log = log_with_actions()
    parts = Parts(in_shards(log, tmp_path, "native").shards, Make(), 10_000, client)
    assert parts.sum(partial(one_if_alone, folder=tmp_path)) == (len(log),)
    assert (tmp_path / "killed").exists()


@pytest.mark.filterwarnings("default")
def test_a_shard_that_no_worker_can_read_is_named(client: Client, tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(), tmp_path, "parquet")
    (tmp_path / "log.parquet").unlink()
    with pytest.raises(ValueError, match=r"In rows 0 to \d+ of .*log\.parquet"):
        Parts(sharded.shards[:1], Make(), 10_000, client).sum(one_if_alone)


class Slow:
    """Makes problems, and waits until so many processes do."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.folder, self.processes, self.deadline = folder, processes, time.monotonic() + PATIENCE_SECONDS

    def __call__(self, log: vf.Transitions) -> vf.Problem:
        (self.folder / f"process-{os.getpid()}").touch()
        while len(list(self.folder.glob("process-*"))) < self.processes and time.monotonic() < self.deadline:
            time.sleep(0.05)
        return vf.Problem(log, discount=0.9, part=True)


def count_steps(part: Part) -> tuple[int]:
    return (part.problem.n,)


@pytest.mark.filterwarnings("default")
def test_all_workers_take_part_from_the_first_sum_on(client: Client, tmp_path: Path) -> None:
    log = log_with_actions()
    parts = Parts(in_shards(log, tmp_path, "native", steps=50).shards, Slow(tmp_path, 2), 10_000, client)
    assert parts.sum(count_steps) == (len(log),)
    assert len(list(tmp_path.glob("process-*"))) == 2


@pytest.mark.filterwarnings("default")
def test_a_worker_that_comes_late_is_used(client: Client, tmp_path: Path) -> None:
    log = log_with_actions()
    parts = Parts(in_shards(log, tmp_path, "native", steps=50).shards, Slow(tmp_path, 3), 10_000, client)
    late = threading.Timer(0.5, client.cluster.scale, args=[3])
    late.start()
    assert parts.sum(count_steps) == (len(log),)
    late.join()
    assert len(list(tmp_path.glob("process-*"))) == 3


@pytest.mark.filterwarnings("default")
def test_random_signs_depend_on_shards_not_on_workers(client: Client, tmp_path: Path) -> None:
    shards = in_shards(log_with_actions(), tmp_path, "native").shards
    sketches = []
    for where in (None, client, client):
        problem = ShardedProblem(Parts(shards, Make(), 10_000, where), trace=0.0, discount=0.9, ridge=0.0)
        rows = problem.sketched_rows(
            8, np.random.default_rng(3), cross=True, traces=False, dtype=np.float64, block_rows=100
        )
        sketches.append(next(iter(rows)))
    np.testing.assert_array_equal(sketches[1].v, sketches[2].v)
    np.testing.assert_allclose(sketches[0].v, sketches[1].v, rtol=1e-12, atol=1e-14)


def noted_partition(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    with (folder / f"partition-{os.getpid()}").open("a") as file:
        file.write(".")
    return frame


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("persisted", "settings"),
    [
        (True, {}),
        (False, {"policy": even_policy}),
    ],
    ids=["persisted", "lazily computed"],
)
def test_a_dask_frame_is_evaluated_by_the_default_client(
    client: Client, persisted: bool, settings: dict[str, Any], tmp_path: Path
) -> None:
    frame = frame_of(log_with_actions())
    lazy = by_episode(frame, 7)
    lazy = lazy.map_partitions(noted_partition, tmp_path, meta=lazy._meta)
    found = vf.evaluate(lazy.persist() if persisted else lazy, discount=0.9, **FOURIER, **settings)
    exact = vf.evaluate(frame, discount=0.9, **FOURIER, **{**settings, "solver": "auto", "tol": 1e-12})
    assert abs(found.policy_value.estimate - exact.policy_value.estimate) < 0.01 * exact.policy_value.standard_error
    assert found.policy_value.standard_error == pytest.approx(exact.policy_value.standard_error, rel=1e-2)
    if found.result.solver == "lstd":
        assert found.policy_value.estimate == pytest.approx(exact.policy_value.estimate, rel=1e-8)
        assert found.policy_value.standard_error == pytest.approx(exact.policy_value.standard_error, rel=1e-7)
    assert found.verdict == exact.verdict
    assert any("workers of a cluster" in note for note in found.notes)
    processes = {file.name for file in tmp_path.glob("partition-*")}
    assert processes
    assert f"partition-{os.getpid()}" not in processes  # no partition is computed here
    if persisted:
        assert sum(len(file.read_text()) for file in tmp_path.glob("partition-*")) == 7


@pytest.mark.filterwarnings("default")
def test_partitions_of_a_killed_worker_are_computed_again(client: Client, tmp_path: Path) -> None:
    frame = frame_of(log_with_actions())
    lazy = by_episode(frame, 6)
    lazy = lazy.map_partitions(noted_partition, tmp_path, meta=lazy._meta)
    parts = Parts(vf.load(lazy.persist()).shards, Make(), 10_000, client)
    assert parts.sum(count_steps) == (len(frame),)
    holder = max(tmp_path.glob("partition-*"), key=lambda file: len(file.read_text()))
    os.kill(int(holder.name.removeprefix("partition-")), signal.SIGKILL)
    assert parts.sum(count_steps) == (len(frame),)
    assert sum(len(file.read_text()) for file in tmp_path.glob("partition-*")) > 6


@pytest.mark.filterwarnings("default")
def test_data_that_only_a_lost_worker_held_end_in_a_sentence(client: Client) -> None:
    frame = frame_of(log_with_actions())
    worker = min(client.scheduler_info()["workers"])
    first = frame.episode < 5
    held = client.scatter([frame[first], frame[~first]], workers=[worker], hash=False)
    log = vf.load(dd.from_delayed(held, meta=frame.iloc[:0]))
    os.kill(client.run(os.getpid, workers=[worker])[worker], signal.SIGKILL)
    with pytest.raises(ValueError, match="A part of the log could be computed on no worker"):
        Parts(log.shards, Make(), 10_000, client).sum(count_steps)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("field", ["obs_1", "reward"])
def test_a_nan_in_one_partition_is_named(client: Client, field: str) -> None:
    frame = frame_of(log_with_actions(20))
    frame.loc[len(frame) // 2, field] = np.nan
    lazy = by_episode(frame, 4)
    problem = r"obs_1 0\.61%; the first is at row" if field == "obs_1" else "reward is nan at step"
    place = rf"^In partition [12] of the Dask DataFrame: .*{problem} \d+"
    with pytest.raises(ValueError, match=place):
        vf.evaluate(lazy, discount=0.9, client=client, **FOURIER)


@pytest.mark.filterwarnings("default")
def test_a_truncated_file_of_a_dask_frame_ends_in_a_sentence(client: Client, tmp_path: Path) -> None:
    frame = frame_of(log_with_actions(20))
    for number in range(4):
        frame[frame.episode * 4 // 20 == number].to_parquet(tmp_path / f"part-{number}.parquet")
    lazy = dd.read_parquet(str(tmp_path / "*.parquet"))
    opened, damaged = vf.load(lazy), tmp_path / "part-2.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    for given in ({}, {"client": client}):
        with pytest.raises(ValueError, match=r"^Partition 2 of the Dask DataFrame cannot be read: Parquet magic bytes"):
            vf.evaluate(lazy, discount=0.9, **given, **FOURIER)
    with pytest.raises(ValueError, match=r"^A part of the log could be computed on no worker: Parquet magic bytes"):
        vf.evaluate(opened, discount=0.9, **FOURIER)
    with pytest.raises(ValueError, match=r"^Partition 2 of the Dask DataFrame cannot be read: Parquet magic bytes"):
        [shard.read() for shard in opened.shards]


class KillsOneWorker:
    """Features that kill the process in which they are first computed, unless it is the one that made them."""

    def __init__(self, marker: Path, call: int) -> None:
        self.marker, self.call, self.process = marker, call, os.getpid()

    def __call__(self, observations: Any) -> Any:
        if os.getpid() != self.process and not self.marker.exists():
            with (self.marker.parent / "calls").open("a") as file:
                file.write(".")
            if len((self.marker.parent / "calls").read_text()) >= self.call:
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return np.column_stack([np.ones(len(observations)), observations, observations**2])


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("solver", "call"),
    [
        ("lstd", 3),
        *(pytest.param(solver, call, marks=pytest.mark.slow) for solver, call in (("lstd", 14), ("pdbg", 60))),
    ],
)
def test_a_worker_that_is_killed_does_not_change_an_evaluation(
    client: Client, solver: str, call: int, tmp_path: Path
) -> None:
    sharded = in_shards(log_with_actions(), tmp_path, "parquet")
    settings = {"discount": 0.9, "solver": solver, "features": KillsOneWorker(tmp_path / "killed", call)}
    found = vf.evaluate(sharded, client=client, **settings)
    assert (tmp_path / "killed").exists()
    expected = vf.evaluate(sharded, client=client, **settings)
    assert found.policy_value == expected.policy_value
    np.testing.assert_array_equal(found.result.theta, expected.result.theta)


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


class Numbered:
    """A shard whose log is its number; the even ones take longer. Number 5 cannot be read."""

    def __init__(self, number: int, under_way: list[int]) -> None:
        self.number, self.under_way = number, under_way

    def read(self) -> Any:
        self.under_way.append(1)
        time.sleep(0.02 if self.number % 2 == 0 else 0.001)
        if self.number == 5:
            raise ValueError("Shard 5 cannot be read.")
        return self.number


@pytest.mark.parametrize("columns", [8, 64, ONE_BLAS_THREAD, 1001, 5000])
@pytest.mark.parametrize("limit", [2_000_000, 1 << 24, 1 << 28, 1 << 33])
def test_parts_fit_into_the_limit_together_and_halves_of_them_are_compiled(limit: int, columns: int) -> None:
    steps, at_once = part_sizes(limit, columns)
    assert 8 * PART_COPIES * steps * columns * at_once <= max(limit, 8 * PART_COPIES * columns**2 * at_once)
    assert 5 * steps >= columns  # so that adding d^2 moments of each part takes less time than forming them
    assert at_once >= 2 or columns > ONE_BLAS_THREAD
    assert at_once <= 2 or worth_compiling(steps * columns / 2)


@pytest.mark.parametrize("at_once", [1, 3])
def test_shards_that_are_computed_together_come_in_order(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("valuefit.streaming.parts.thread_count", lambda: 8)
    begun: list[int] = []
    results = each_shard((Numbered(number, begun) for number in range(100)), lambda log, n: (log, n), at_once)
    for number in range(5):
        assert next(results) == (number, number)
        assert len(begun) <= number + 1 + at_once
    with pytest.raises(ValueError, match="Shard 5 cannot be read"):
        next(results)
    assert len(begun) <= 6 + at_once  # those after the failure are not begun


def test_sums_do_not_depend_on_how_many_parts_are_computed_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("valuefit.streaming.parts.thread_count", lambda: 3)
    sharded = in_shards(log_with_actions(), tmp_path, "native", steps=50)
    one, three = (Parts(sharded.shards, Make(), 30, None, at_once).sum(moments_of) for at_once in (1, 3))
    for here, there in zip(one, three, strict=True):
        np.testing.assert_array_equal(here, there)


def moments_of(part: Part) -> tuple[Any, ...]:
    return part.problem.n, part.problem.A, part.problem.second_moment, part.problem.b, [part.place]
