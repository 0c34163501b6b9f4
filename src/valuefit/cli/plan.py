"""The command `plan`: what the model of `evaluation/plan.py` predicts, as text or JSON."""

from __future__ import annotations

from typing import Any

import click

from valuefit.cli.commands import print_json
from valuefit.evaluation.plan import Plan, plan

MODEL = (
    "Predicted by a model (evaluation/plan.py), whose coefficients were measured on few cores (benchmarks/cluster.md). "
    "With Dask's own scheduler, 64 to 256 workers and sleeping tasks, passes took 0.9 to 1.4 times as long as that."
)


def run_plan(*, as_json: bool, **sizes: Any) -> None:
    """Print the plan for these sizes, the arguments of `evaluation.plan.plan`."""
    planned = plan(**sizes)
    if as_json:
        print_json({"model": MODEL, **planned.to_dict()})
    else:
        click.echo("\n".join(lines_of(planned)))


def lines_of(planned: Plan) -> list[str]:
    """The text of a plan, line by line."""
    count = sum(one.count for one in planned.passes)
    parts = [f"{one.name} {f'{one.count} x ' * (one.count > 1)}{duration(one.seconds)}" for one in planned.passes]
    if planned.solve_seconds >= 1e-3:
        parts.append(f"solve {duration(planned.solve_seconds)}")
    each, workers = planned.disk_bytes / planned.workers, f"{planned.workers:,} workers x {planned.threads:,} threads"
    lines = [
        f"time        {duration(planned.seconds)} ({', '.join(parts)})",
        f"memory      {size(planned.worker_bytes)} a worker ({workers})",
        f"passes      {count:,} over {planned.shards:,} shards of {planned.shard_steps:,} steps, "
        f"solver {planned.solver}",
        f"disk read   {size(planned.disk_bytes)}: {size(each)} by each worker, {size(each / planned.seconds)} a second",
    ]
    if planned.cost is not None:
        lines.append(f"cost        {planned.cost:,.2f}, at {planned.price:,.2f} for a worker and an hour")
    return [*lines, "", MODEL]


def duration(seconds: float) -> str:
    """Two digits and the largest unit of which there are at least one and a half."""
    units = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1, "milliseconds": 1e-3}
    return _in_units(seconds, units, 2, at_least=1.5)


def size(count: float) -> str:
    """Bytes with the largest decimal unit of which there is at least one."""
    return _in_units(count, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}, 3, at_least=1)


def _in_units(amount: float, units: dict[str, float], digits: int, *, at_least: float) -> str:
    unit = next((unit for unit, length in units.items() if amount >= at_least * length), list(units)[-1])
    amount /= units[unit]
    return f"{amount:,.{digits}g} {unit}" if amount < 10**digits else f"{amount:,.0f} {unit}"
