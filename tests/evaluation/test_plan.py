from __future__ import annotations

import math
from typing import Any

import pytest

from valuefit.evaluation.plan import Cluster, plan
from valuefit.machine import CLUSTER_COSTS, COSTS

ONLY_TASKS = {"task": 1e-3, "sum_byte": 0.0}
BASE: dict[str, Any] = {"steps": 1e10, "features": 500, "workers": 64}


def test_one_process_costs_its_steps_alone() -> None:
    """Closed form: every step is read three times, and enters the moments and the errors."""
    found = plan(steps=1e6, features=10, solver="lstd")
    one, n, d = CLUSTER_COSTS, 1e6, 10
    rows = n * (one["read_step"] + one["problem_step"] + d * one["feature"])
    flops = (3.0 + 0.32) * n * d**2 * COSTS["gram_flop"] + 2 / 3 * d**3 * COSTS["factor_flop"]
    assert found.seconds == pytest.approx(n * one["read_step"] + 2 * rows + flops)
    assert (found.shards, found.shard_steps, found.disk_bytes) == (1, 1_000_000, 3 * 75e6)


def test_the_scheduler_limits_passes_without_work() -> None:
    """64 shards in a tree of fan-in 8: one function, 64 shards, 8 and 1 sums, then two levels of latency.

    In several rounds some worker gets a shard more than others, until Dask moves it, after a second.
    """
    cluster = Cluster(64, 1, ONLY_TASKS)
    assert cluster.pass_seconds(64, 0.0, sent=0, returned=0) == pytest.approx(1e-3 * (1 + 64 + 8 + 1 + 2))
    assert cluster.pass_seconds(64, 5.0, sent=0, returned=0) == pytest.approx(5.0 + 2e-3)
    assert cluster.pass_seconds(65, 5.0, sent=0, returned=0) == pytest.approx(10.0 + 1.0 + 3e-3)
    assert cluster.pass_seconds(65, 0.5, sent=0, returned=0) == pytest.approx(1.0 + 0.5 + 3e-3)


def test_bytes_are_sent_by_doubling_and_added_along_the_tree() -> None:
    cluster = Cluster(7, 1, {"task": 0.0, "sum_byte": 1.0})
    assert cluster.pass_seconds(7, 0.0, sent=10.0, returned=0.0) == pytest.approx(10 * 3)
    assert cluster.pass_seconds(7, 0.0, sent=0.0, returned=2.0) == pytest.approx(2 + 8 * 2)


@pytest.mark.parametrize("name", ["steps", "features"])
def test_more_of_it_takes_longer(name: str) -> None:
    few, many = plan(**BASE), plan(**{**BASE, name: 3 * BASE[name]})
    assert many.seconds > few.seconds


@pytest.mark.parametrize("name", ["workers", "threads"])
def test_more_of_them_are_faster_until_the_scheduler_is_busy(name: str) -> None:
    times = [plan(**{**BASE, name: count}).seconds for count in (2, 4, 8, 16, 32)]
    assert times == sorted(times, reverse=True)
    limit = plan(**{**BASE, "workers": 100_000}).seconds
    assert limit > 3 * plan(**BASE).shards * CLUSTER_COSTS["task"]


def test_memory_has_the_moments_and_what_threads_hold() -> None:
    small, large = plan(**BASE), plan(**{**BASE, "features": 5000})
    assert large.worker_bytes - small.worker_bytes == pytest.approx(10 * 16 * (5000**2 - 500**2))
    two = plan(**BASE, threads=2, limit=1e9)
    assert two.worker_bytes - plan(**BASE, limit=1e9).worker_bytes == pytest.approx(1e9 + 16 * 500**2)
    assert plan(**{**BASE, "steps": 1e11}).worker_bytes == small.worker_bytes  # does not grow with the log


def test_wide_problems_iterate_over_the_log() -> None:
    found = plan(**{**BASE, "features": 20_000}, iterations=50)
    assert found.solver == "krylov"
    assert {one.name: one.count for one in found.passes} == {"samples": 1, "products": 52, "errors": 1}
    assert found.disk_bytes == 54 * 1e10 * 75
    assert plan(**BASE, solver="pdbg").passes[1].count == 202


def test_cost_is_the_price_of_all_workers() -> None:
    found = plan(**BASE, price=2.0)
    assert found.cost == pytest.approx(2.0 * 64 * found.seconds / 3600)
    assert plan(**BASE).cost is None
    assert found.to_dict()["cost"] == found.cost
    assert all(math.isfinite(value) for value in found.to_dict().values() if isinstance(value, float))


def test_a_thousand_workers_and_1e11_steps_are_planned() -> None:
    found = plan(steps=1e11, features=100, workers=1000)
    assert found.shards == 100_000
    assert 0 < found.seconds < 86400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": math.nan}, "steps is nan"),
        ({"steps": 1e20}, "from 1 to 1e"),
        ({"features": 2.5}, "features is 2.5; it must be a whole number"),
        ({"workers": -1}, "workers is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"numbers": 0}, "numbers is 0"),
        ({"limit": math.inf}, "limit is inf"),
        ({"price": -1}, "price is -1"),
        ({"price": math.nan}, "price is nan"),
        ({"solver": "saga"}, "solver is 'saga'"),
        ({"solver": "lstd", "iterations": 3}, "lstd does not iterate"),
        ({"solver": "pdbg", "iterations": 0}, "iterations is 0"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(**{**BASE, **change})
