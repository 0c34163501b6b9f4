"""The command `plan`: what the model of `evaluation/plan.py` predicts, as text or JSON."""

from __future__ import annotations

from typing import Any

import click

from valuefit.cli.commands import print_json
from valuefit.evaluation.plan import Plan, plan

MODEL = (
    "Predicted by a model (evaluation/plan.py), whose coefficients were fitted on two cores (benchmarks/cluster.md). "
    "With Dask's own scheduler, 64 to 256 workers and sleeping tasks, passes took 0.9 to 1.4 times as long as that."
)
UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"), (1e-3, "milliseconds"))


def run_plan(*, as_json: bool, **sizes: Any) -> None:
    """Print the plan for these sizes, the arguments of `evaluation.plan.plan`."""
    found = plan(**sizes)
    if as_json:
        print_json({"model": MODEL, **found.to_dict()})
    else:
        click.echo("\n".join(lines_of(found)))


def lines_of(found: Plan) -> list[str]:
    """The text of a plan, line by line."""
    count = sum(one.count for one in found.passes)
    parts = [f"{one.name} {f'{one.count} x ' * (one.count > 1)}{duration(one.seconds)}" for one in found.passes]
    if found.solve_seconds >= UNITS[-1][0]:
        parts.append(f"solve {duration(found.solve_seconds)}")
    each = found.disk_bytes / found.workers
    lines = [
        f"time        {duration(found.seconds)} ({', '.join(parts)})",
        f"memory      {size(found.worker_bytes)} a worker ({found.workers:,} workers x {found.threads:,} threads)",
        f"passes      {count:,} over {found.shards:,} shards of {found.shard_steps:,} steps, solver {found.solver}",
        f"disk read   {size(found.disk_bytes)}: {size(each)} by each worker, {size(each / found.seconds)} a second",
    ]
    if found.cost is not None:
        lines.append(f"cost        {found.cost:,.2f}, at {found.price:,.2f} for a worker and an hour")
    return [*lines, "", MODEL]


def duration(seconds: float) -> str:
    """Two digits and the largest unit of which there are at least one and a half."""
    length, unit = next(((one, unit) for one, unit in UNITS if seconds >= 1.5 * one), UNITS[-1])
    return f"{seconds / length:,.2g} {unit}" if seconds / length < 100 else f"{seconds / length:,.0f} {unit}"


def size(count: float) -> str:
    """Bytes with the largest decimal unit of which there is at least one."""
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    length, unit = next(((one, unit) for one, unit in units if count >= one), units[-1])
    return f"{count / length:,.3g} {unit}" if count / length < 1000 else f"{count / length:,.0f} {unit}"
