"""How long an evaluation of a log in shards takes, and what it needs: a model whose costs are those of `machine`.

    seconds of a pass = max(compute, schedule) + send + reduce
    compute  = rounds of shards on all threads x steps of a shard x seconds of a step
               + the smaller of a shard and STEAL_SECONDS, if there are several rounds
    schedule = tasks x seconds of a task, which the scheduler works off one after the other
    send     = bytes sent to workers x seconds of a byte x ceil(log2(workers + 1))
    reduce   = levels of the tree of sums x (seconds of a task + FAN_IN x bytes of a sum x seconds of a byte)

A step takes "read_step" to read; where its features are needed also "problem_step" + features x "feature", and
STEP_FLOPS x features^2 x "gram_flop" for moments and for errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from valuefit.data.shards import shard_steps
from valuefit.data.validation import byte_count, number, one_of
from valuefit.engine.choice import for_shards
from valuefit.machine import CLUSTER_COSTS, COSTS, WORKER_BYTES
from valuefit.streaming.parts import FAN_IN

SOLVERS = ("auto", "lstd", "krylov", "pdbg")
ITERATIONS = {"krylov": 30, "pdbg": 200}  # passes of a solve if none are given; they depend on the problem
# operations for each step and pair of features; of errors: as measured with episodes of 200 steps
STEP_FLOPS = {"moments": 3.0, "errors": 0.32}
SCALAR_BYTES = 43  # of a step in a saved folder, beyond its observation
STEAL_SECONDS = 1.0  # Dask gives workers a task more than they have threads, and moves waiting ones this often
MAX_STEPS, MAX_FEATURES, MAX_WORKERS = 1e15, 1e6, 1e6


@dataclass(frozen=True)
class Pass:
    """One pass over all shards. name: "samples", "moments", "products" or "errors"; count: how often it is made."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What the model predicts. disk_bytes: read by all workers in all passes."""

    solver: str
    shards: int
    shard_steps: int
    passes: tuple[Pass, ...]
    solve_seconds: float
    worker_bytes: float
    disk_bytes: float
    workers: int
    threads: int
    price: float | None = None

    @property
    def seconds(self) -> float:
        return self.solve_seconds + sum(one.count * one.seconds for one in self.passes)

    @property
    def cost(self) -> float | None:
        """Price of a worker for an hour times workers times hours."""
        return None if self.price is None else self.price * self.workers * self.seconds / 3600

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": self.seconds, "cost": self.cost}


@dataclass(frozen=True)
class Cluster:
    """Workers with threads, each of which runs one task at a time; one worker is this process, without a scheduler."""

    workers: int = 1
    threads: int = 1
    costs: Mapping[str, float] = field(default_factory=lambda: CLUSTER_COSTS)

    def pass_seconds(self, shards: int, shard_seconds: float, *, sent: float, returned: float) -> float:
        """Seconds of a pass in which a shard takes so long; sent, returned: bytes to a worker and from a task."""
        task, byte = self.costs["task"], self.costs["sum_byte"]
        if self.workers == 1:
            return shards * shard_seconds / self.threads
        rounds = math.ceil(shards / (self.workers * self.threads))
        levels = math.ceil(math.log(shards, FAN_IN) - 1e-9)
        tasks = 1 + shards + sum(math.ceil(shards / FAN_IN**level) for level in range(1, levels + 1))
        compute = rounds * (shard_seconds + returned * byte)
        uneven = min(shard_seconds, STEAL_SECONDS) if rounds > 1 else 0.0
        busy = max(compute + uneven, tasks * task)
        send = sent * byte * math.ceil(math.log2(self.workers + 1))
        return busy + send + levels * (task + FAN_IN * returned * byte)


def plan(
    *,
    steps: float,
    features: float,
    workers: float = 1,
    threads: float = 1,
    solver: str = "auto",
    iterations: float | None = None,
    numbers: float = 8,
    limit: float | str = 2 << 30,
    price: float | None = None,
) -> Plan:
    """Predict time and memory of `evaluate` for a log in parts.

    steps, features: n and d. workers, threads: of the cluster; 1 worker is this process. iterations: passes of a
    solver that reads the log in each. numbers: in an observation (float32). limit: bytes that a thread may hold, as in
    `load`. price: of a worker for an hour.
    """
    one_of("solver", solver, SOLVERS)
    n, d = _whole("steps", steps, MAX_STEPS), _whole("features", features, MAX_FEATURES)
    cluster = Cluster(_whole("workers", workers, MAX_WORKERS), _whole("threads", threads, MAX_WORKERS))
    width, limit = _whole("numbers", numbers, MAX_FEATURES), byte_count("limit", limit)
    if price is not None:
        price = number("price", price, "it must be a finite number, 0 or more", lambda x: 0 <= x < math.inf)
    if solver == "auto":
        solver = for_shards(d)
    if solver == "lstd" and iterations is not None:
        raise ValueError("lstd does not iterate over the log. Leave iterations out, or plan krylov or pdbg.")
    count = (
        0
        if solver == "lstd"
        else _whole("iterations", ITERATIONS[solver] if iterations is None else iterations, MAX_STEPS)
    )
    step_bytes = SCALAR_BYTES + 4 * width
    size = min(n, shard_steps(limit, step_bytes))
    shards = math.ceil(n / size)
    work = _Work(size, d)
    square = 16.0 * d * d  # bytes of A and C
    sent = 8.0 * d * width  # of the features
    passes = [Pass("samples", 1, cluster.pass_seconds(shards, work.step, sent=sent, returned=0))]
    if solver == "lstd":
        passes.append(Pass("moments", 1, cluster.pass_seconds(shards, work.moments, sent=sent, returned=square)))
    else:
        products = cluster.pass_seconds(shards, work.products, sent=sent + 16.0 * d, returned=16.0 * d)
        passes.append(Pass("products", 2 + count, products))
    errors = work.errors if solver == "lstd" else work.products
    sent += square if solver == "lstd" else 16.0 * d
    passes.append(Pass("errors", 1, cluster.pass_seconds(shards, errors, sent=sent, returned=0)))
    solve = 2 / 3 * d**3 * COSTS["factor_flop"] if solver == "lstd" else 0.0
    held = square if solver == "lstd" else 16.0 * d
    memory = WORKER_BYTES + cluster.threads * limit + held * (FAN_IN + 1 + cluster.threads)
    reads = sum(one.count for one in passes)
    return Plan(
        solver, shards, size, tuple(passes), solve, memory, float(reads) * n * step_bytes, cluster.workers,
        cluster.threads, price,
    )  # fmt: skip


@dataclass(frozen=True)
class _Work:
    """Seconds of one thread for a shard of so many steps."""

    steps: int
    d: int

    @property
    def step(self) -> float:
        return self.steps * CLUSTER_COSTS["read_step"]

    @property
    def products(self) -> float:
        return self.step + self.steps * (CLUSTER_COSTS["problem_step"] + self.d * CLUSTER_COSTS["feature"])

    @property
    def moments(self) -> float:
        return self.products + STEP_FLOPS["moments"] * self.steps * self.d**2 * COSTS["gram_flop"]

    @property
    def errors(self) -> float:
        return self.products + STEP_FLOPS["errors"] * self.steps * self.d**2 * COSTS["gram_flop"]


def _whole(name: str, value: Any, most: float) -> int:
    requirement = f"it must be a whole number from 1 to {most:.0e}"
    return int(number(name, value, requirement, lambda x: 1 <= x <= most and x == int(x)))
