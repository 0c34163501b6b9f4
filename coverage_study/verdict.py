"""Calibrate the verdict: evaluate every cell (task, size, route, features) on many logs, and print the table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coverage_study import page
from coverage_study.calibration import Found, Key, flagged_by_check, leave_one_out, rows_of
from coverage_study.records import FOLDER, Cell, run_cells
from coverage_study.tasks import FIT, TEST, Task, tasks

FITTED_LOGS, TESTED_LOGS = 40, 100  # of a cell; with 40, the coverage of one in six right cells is below 92% by chance


def keys_of(task: Task) -> Iterator[Key]:
    """All cells of a task."""
    for episodes in task.sizes:
        for route in task.routes:
            for features in task.features:
                yield Key(task.name, episodes, route, features)


def draw(rng: np.random.Generator, key: Key) -> tuple[Any, dict[str, Any], float]:
    task = tasks()[key.task]
    return task.log(key.route, key.episodes, rng), task.settings(key.route, key.features), task.truth


def cell_of(key: Key, folder: Path = FOLDER / "verdict") -> Cell:
    return Cell(key.name, partial(draw, key=key), folder)


def main(arguments: list[str] | None = None) -> int:
    """Run the cells and print the table; returns the exit status, 130 after Ctrl-C."""
    options = _parse(arguments)
    keys = [key for name in options.only or tasks() for key in keys_of(tasks()[name])]
    by_name, found = {key.name: key for key in keys}, []
    cells = [cell_of(key) for key in keys]
    counts = [options.replications or (FITTED_LOGS if key.task in FIT else TESTED_LOGS) for key in keys]
    try:
        for cell, records in run_cells(cells, counts, jobs=options.jobs, seconds=options.seconds, keep=options.keep):
            if records:
                found.append(Found(by_name[cell.name], list(records.values())))
                _print_cell(found[-1])
    except KeyboardInterrupt:
        print("Interrupted; the same command resumes.")
        return 130
    tables = {"fitted": rows_of(found, FIT, "all fitted"), "tested": rows_of(found, TEST, "all tested")}
    for title, rows in tables.items():
        print(f"\nTasks on which the rule is {title}")
        print("\n".join(page.verdict_lines(rows)))
    left_out = leave_one_out(found, [name for name in FIT if any(cell.key.task == name for cell in found)])
    print("\nA fit of two constants to the other tasks")
    print("\n".join(page.left_out_lines(left_out)))
    print("\nChecks that did not pass, on the tasks that are fitted: in wrong cells, in right cells")
    for name, shares in flagged_by_check([cell for cell in found if cell.key.task in FIT]).items():
        print(f"{name:35}" + "".join(f"{share:6.0%}" for share in shares))
    if options.only is None and len(found) == len(keys):
        print(f"Wrote {page.write_verdicts(tables, left_out)}")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m coverage_study.verdict", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tasks(), metavar="TASK", help=f"Tasks: {', '.join(tasks())}.")
    parser.add_argument(
        "--replications", type=int, help=f"Logs per cell: {FITTED_LOGS}, of tested tasks {TESTED_LOGS}."
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Maximum time of all cells together.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    parser.add_argument("--keep", action="store_true", help="Go on with records of other sources.")
    return parser.parse_args(arguments)


def _print_cell(cell: Found) -> None:
    coverage = "none" if cell.coverage is None else f"{cell.coverage:.0%}"
    estimates = [record["estimate"] for record in cell.records if "estimate" in record]
    median = f"{np.median(estimates):9.4g}" if estimates else f"{'refused':>9}"
    seconds = np.mean([record["seconds"] for record in cell.records])
    print(
        f"{cell.key.name:55}{len(cell.records):5d} logs, covered {coverage:>5}, median {median} of "
        f"{cell.records[0]['truth']:9.4g}, sound {len(cell.sound) / len(cell.records):4.0%}, {seconds:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
