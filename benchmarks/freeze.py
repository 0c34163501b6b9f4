"""Numbers of many evaluations, stored before a change of the code and compared after it.

    python -m benchmarks.freeze write OLD.json.gz [--quick] [--only NAME ...] [--jobs N]
    python -m benchmarks.freeze compare OLD.json.gz NEW.json.gz [--without WORDS ...]

`write` evaluates the logs of `benchmarks.frozen_logs` by every route with every option, in three storages, and stores
each number, verdict and outcome of a check that `valuefit.evaluate` gives; `--quick` takes 12 of the 60 logs, `--only`
those whose names begin so. `compare` prints the largest difference of each quantity relative to what is allowed, and
the cells that differ by more; it then exits with 1. Logs that NEW does not have are left out, and so are cells and
quantities with one of the WORDS in their names, such as "checks/episode weights".

What is allowed:
- with solver="lstd", relative to the number (estimates, intervals, cross-checks: or to the standard error of the policy
  value, if that is larger; checks: or to 0.01): 1e-7 for estimates, values and weights, 1e-6 for standard errors,
  intervals and effective episodes, 1e-5 for numbers of checks and of cross-checks, which are not solved directly;
- with other solvers, in addition, 1e-5 of the standard error and the solver errors that the two evaluations report:
  with tol="statistical" a solver may stop a tenth of the standard error before its end;
- verdicts, outcomes, methods, counts and refusals are equal. Sentences, times, passes and the solver that "auto"
  chose are not compared.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as parquet
from threadpoolctl import threadpool_limits

import valuefit as vf
from benchmarks.frozen_logs import CASES, OPTIONS, OTHER_ANSWERS, QUICK_CASES, SAMPLED, Case

SHARD_LIMIT = 600_000  # bytes: shards have 1,000 steps, and parts of shards some hundred
WHOLE_LIMIT = 64 << 20  # bytes: the sample of a log in shards is all of it
FILES = 3  # of Parquet, of each log; episodes continue from file to file
ASKED = 6  # observations whose values are asked for
ODDS = 1.5  # of the sensitivity to a hidden variable
ESTIMATE, ERROR, CHECK = 1e-7, 1e-6, 1e-5  # allowed differences of the three groups of numbers
ITERATIVE = 1e-5  # of the standard error, besides the solver errors
SMALL_CHECK = 0.01  # smaller numbers of checks are compared absolutely
LISTED = 40  # cells that differ, of those that are printed
GROUPS = {
    "estimates": ("policy_value/estimate", "theta", "values", "difference/estimate", "td_errors", "sensitivity"),
    "checks": ("checks", "cross_checks", "difference/p_value"),
}  # all other numbers are errors
NOT_COMPARED = ("message", "solver")  # the text of a refusal, and which solver "auto" chose


# ---- one evaluation ------------------------------------------------------------------------------------------


def attempt(work: Callable[[], Any]) -> Any:
    """What the call returns, or {"refused": the kind of error, "message": its text}."""
    try:
        return work()
    except Exception as error:  # whatever is raised is to be compared
        return {"refused": type(error).__name__, "message": str(error)}


def facts_of(evaluation: vf.Evaluation, log: vf.Transitions, solver: str) -> dict[str, Any]:
    """What is stored of an evaluation, as plain data."""
    told = evaluation.to_dict()
    seen = log.observations[:: max(len(log.observations) // ASKED, 1)][:ASKED]
    facts = {
        "verdict": told["verdict"]["level"],
        "status": told["solver"]["status"],
        "solver": told["solver"]["name"],
        "policy_value": told["policy_value"],
        "follows": told["follows"],
        "size": [told["steps"], told["episodes"], told["features"]["count"], told["features"]["without_data"]],
        "weights": [weight["standard_error"] for weight in told["weights"] or ()],
        "checks": {check.pop("name"): without_text(check) for check in told["checks"]},
        "cross_checks": {check.pop("name"): without_text(check) for check in told["cross_checks"]},
        "values": attempt(lambda: evaluation.value(seen).tolist()),
        "value_interval": attempt(lambda: evaluation.value_interval(seen).tolist()),
        "simultaneous": attempt(lambda: evaluation.value_interval(seen, simultaneous=True).tolist()),
        "td_errors": float(np.mean(evaluation.td_errors() ** 2)),
    }
    if solver == "lstd":
        facts["theta"] = evaluation.result.theta.tolist()
    if evaluation.values == "state-action" and log.has_numbered_states:
        facts["sensitivity"] = attempt(lambda: bounds(evaluation.sensitivity(ODDS)))
    return facts


def without_text(check: dict[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in check.items() if name not in ("message", "note")}


def bounds(sensitivity: Any) -> list[float]:
    return np.ravel([sensitivity.lower, sensitivity.upper]).tolist()


def difference(first: vf.Evaluation, other: vf.Evaluation) -> dict[str, Any]:
    """The comparison of two evaluations of a log, as plain data."""
    told = {**vars(vf.compare(first, other))}
    return {name: told[name] for name in told if name not in ("names", "notes")}


# ---- all evaluations of a log --------------------------------------------------------------------------------


def stored(case: Case, storage: str, folder: Path) -> Any:
    """The log in memory; in shards; or in shards and parts of shards, with a sample of it for the checks."""
    log = case.log
    if storage == "memory":
        return log
    whole, parts = folder / "log.parquet", [folder / f"part-{file}.parquet" for file in range(FILES)]
    if case.in_files and not whole.exists():
        columns, rows = parquet.read_table(vf.save(log, whole)), -(-len(log) // FILES)
        for file, part in enumerate(parts):
            parquet.write_table(columns.slice(file * rows, rows), part)
    sharded = vf.load(parts if case.in_files else log, memory="stream", limit=SHARD_LIMIT)
    return sharded if storage == "sample" else replace(sharded, limit=WHOLE_LIMIT)


def cells_of(name: str) -> dict[str, Any]:
    """The facts of all evaluations of the log of this name, by "log/storage/route/option"."""
    case = CASES[name]()
    cells: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for storage in case.storages:
            cells |= {f"{name}/{storage}/{cell}": facts for cell, facts in _evaluations(case, storage, Path(folder))}
    return cells


def _evaluations(case: Case, storage: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    source, first = stored(case, storage, folder), None
    if storage != "memory":
        yield "shards", {"count": len(source.shards)}
    for route, by_route in case.routes.items():
        for option in case.options:
            if storage == "sample" and option not in SAMPLED:
                continue
            settings = {"solver": "lstd", **case.settings, **by_route, **OPTIONS[option](case.log)}
            evaluation = attempt(partial(vf.evaluate, source, **settings))
            if isinstance(evaluation, dict):
                yield f"{route}/{option}", evaluation
                continue
            facts = facts_of(evaluation, case.log, settings["solver"])
            first = first or (route, evaluation)
            if route != first[0] or option in OTHER_ANSWERS:
                facts["difference"] = attempt(partial(difference, evaluation, first[1]))
            yield f"{route}/{option}", facts


def write(path: Path, names: list[str], jobs: int = 1) -> dict[str, Any]:
    """Evaluate the logs of these names and write what is stored of them."""
    if jobs == 1:
        made = [cells_of(name) for name in names]
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            made = list(pool.map(cells_of, names))
    frozen = {"logs": names, "cells": {cell: facts for cells in made for cell, facts in cells.items()}}
    path.write_bytes(gzip.compress(json.dumps(frozen, indent=0).encode(), mtime=0))  # the same bytes for equal facts
    return frozen


def read(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


# ---- comparison ----------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """What differs between two stored evaluations. share: of what is allowed; infinite for what is not a number."""

    cell: str
    quantity: str
    share: float
    old: Any
    new: Any


def compare(old: dict[str, Any], new: dict[str, Any], without: Sequence[str] = ()) -> list[Difference]:
    """All quantities of the cells of logs that `new` has, the equal ones with a share of 0.

    without: words; a quantity is left out if one of them is in its cell or in its path.
    """
    cells = {cell for cell in old["cells"] if cell.split("/")[0] in new["logs"]} | new["cells"].keys()
    pairs = [(cell, old["cells"].get(cell), new["cells"].get(cell)) for cell in sorted(cells)]
    differences = [one for cell, before, after in pairs for one in compare_cells(cell, before, after)]
    return [one for one in differences if not any(word in f"{one.cell}/{one.quantity}" for word in without)]


def compare_cells(cell: str, one: dict[str, Any] | None, other: dict[str, Any] | None) -> Iterator[Difference]:
    """The quantities of one cell; only that it is missing if it is in one of the two."""
    if one is None or other is None:
        yield Difference(cell, "cell", np.inf, one and "present", other and "present")
        return
    values = [facts.get("policy_value", {}) for facts in (one, other)]
    error = values[0].get("standard_error") or 0.0
    solver_errors = sum(value.get("solver_error") or 0.0 for value in values)
    iterative = 0.0 if "theta" in one and "theta" in other else ITERATIVE + (solver_errors / error if error else 0.0)
    left, right = dict(leaves(one)), dict(leaves(other))
    for name in sorted(left.keys() | right.keys()):
        old, new = left.get(name), right.get(name)
        yield Difference(cell, name, share(name, old, new, error, iterative), old, new)


def leaves(facts: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The quantities by path; a list is one quantity. Those in NOT_COMPARED are left out."""
    for name, entry in facts.items():
        if isinstance(entry, dict):
            yield from leaves(entry, f"{path}{name}/")
        elif name not in NOT_COMPARED:
            yield f"{path}{name}", entry


def group(name: str) -> str:
    return next((group for group, starts in GROUPS.items() if name.startswith(starts)), "errors")


def share(name: str, old: Any, new: Any, error: float, iterative: float) -> float:
    """The difference of a quantity relative to what is allowed; infinite where they must be equal and are not."""
    if old == new:
        return 0.0
    if not (is_numbers(old) and is_numbers(new)) or np.shape(old) != np.shape(new) or name == "size":
        return np.inf
    a, b = (np.ravel(np.asarray(entry, float)) for entry in (old, new))
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    peak = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    apart = float(np.abs(a[differs] - b[differs]).max(initial=0.0))
    kind = group(name)
    if kind == "estimates":
        allowed = ESTIMATE * max(peak, error) + iterative * (error or peak)
    elif kind == "errors":
        own = "standard_error" in name or "effective" in name or name == "weights"
        allowed = (ERROR + iterative) * (peak if own else max(peak, error))
    else:
        allowed = (CHECK + iterative) * max(peak, SMALL_CHECK, error if name.startswith("cross_checks") else 0.0)
    return apart / allowed if allowed else np.inf


def is_numbers(entry: Any) -> bool:
    """Whether this is a number, or a list of numbers in which None stands for infinity."""
    return isinstance(entry, int | float | list) and not isinstance(entry, bool)


def quantity(name: str) -> str:
    """A row of the table: the quantity without the names of checks."""
    first, *others = name.split("/")
    return f"{first}/{others[-1]}" if others else first


def table(differences: list[Difference]) -> str:
    """The largest difference of each quantity, and the cells that differ by more than is allowed."""
    worst: dict[str, Difference] = {}
    for one in differences:
        row = quantity(one.quantity)
        if row not in worst or one.share > worst[row].share:
            worst[row] = one
    lines = [f"{'quantity':40}{'of allowed':>12}  cell"]
    lines += [f"{row:40}{one.share:12.2g}  {one.cell if one.share else ''}" for row, one in sorted(worst.items())]
    failed = [one for one in differences if one.share > 1]
    cells = {one.cell for one in failed}
    lines.append(
        f"\n{len({one.cell for one in differences})} cells compared, {len(cells)} differ by more than allowed."
    )
    lines += [f"{one.cell}: {one.quantity} {one.old} -> {one.new} ({one.share:.2g})"[:300] for one in failed[:LISTED]]
    if len(failed) > LISTED:
        lines += [f"... and {len(failed) - LISTED} more quantities, in these cells:", *sorted(cells)]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Store the numbers of many evaluations, or compare two such files.")
    commands = parser.add_subparsers(dest="command", required=True)
    writing, comparing = commands.add_parser("write"), commands.add_parser("compare")
    writing.add_argument("file", type=Path)
    writing.add_argument("--quick", action="store_true", help="12 of the logs")
    writing.add_argument("--only", nargs="+", default=[""], help="logs whose names begin so")
    writing.add_argument("--jobs", type=int, default=1)
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--without", nargs="+", default=(), help='words, as in "checks/episode weights"')
    given = parser.parse_args(arguments)
    if given.command == "write":
        names = [name for name in (QUICK_CASES if given.quick else CASES) if name.startswith(tuple(given.only))]
        cells = write(given.file, names, given.jobs)["cells"]
        refused = sum("refused" in facts for facts in cells.values())
        print(f"{len(cells)} cells of {len(names)} logs in {given.file}; {refused} evaluations were refused.")
        return
    differences = compare(read(given.old), read(given.new), given.without)
    print(table(differences))
    sys.exit(int(any(one.share > 1 for one in differences)))


if __name__ == "__main__":
    main()
