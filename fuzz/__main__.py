"""Run every target, print counts by outcome and each failure with the command that repeats it."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time

from fuzz import (
    array_files,
    calls,
    commands,
    differential,
    evaluation_calls,
    experiments,
    faults,
    feature_calls,
    logs,
    selection_calls,
    stored,
    text_files,
)
from fuzz.outcome import ALLOWED, FAILURES
from fuzz.runner import Report, Target, run

MODULES = (
    text_files, logs, array_files, stored, calls, feature_calls, evaluation_calls, selection_calls, commands,
    experiments, differential,
)  # fmt: skip
TARGETS: dict[str, Target] = {target.name: target for module in MODULES for target in module.TARGETS}
FAULTS = "faults"  # not a target: its cases are processes that it kills itself
KILLS, MAX_FAULT_SECONDS = 300, 120.0  # of a full run
MAX_SECONDS = 1050.0  # of all targets in a full run, which together with the faults takes at most 20 minutes
SHOWN_FAILURES = 5  # of one target and kind


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen targets; returns the exit status, 1 if anything failed."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder, contextlib.chdir(folder):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    started, failed = time.monotonic(), False
    reports: list[Report] = []
    for name in options.only or TARGETS:
        if name == FAULTS:
            continue
        left = options.seconds - (time.monotonic() - started)
        target = TARGETS[name]
        cases = range(options.cases or target.cases)
        if options.case is not None:
            cases = range(options.case, options.case + 1)
        report = run(target, seed=options.seed, cases=cases, jobs=options.jobs, seconds=left)
        _print_row(report, first=not reports)
        reports.append(report)
        failed |= bool(report.failures) or report.counts.total() < len(cases)
    for report in reports:
        _print_failures(report, options.seed, everything=options.all)
    if FAULTS in (options.only or ()) or (options.only is None and options.cases is None):
        failed |= _run_faults(options.cases or KILLS, options.seed, min(options.seconds, MAX_FAULT_SECONDS))
    print(f"\n{time.monotonic() - started:.0f} s" + (": something failed." if failed else ": nothing failed."))
    return int(failed)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    names = [*TARGETS, FAULTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="TARGET", help=f"Targets: {', '.join(names)}.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="Run this case alone.")
    parser.add_argument("--cases", type=int, help="Cases per target, instead of 5,000 (fewer for some).")
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="Maximum time of all targets together.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    parser.add_argument("--all", action="store_true", help="Print every failure.")
    return parser.parse_args(arguments)


def _print_row(report: Report, *, first: bool) -> None:
    columns = (*ALLOWED, *FAILURES)
    if first:
        print(f"{'target':14}{'cases':>7}" + "".join(f"{name:>10}" for name in columns) + f"{'seconds':>9}")
    counts = "".join(f"{report.counts[name] or '-':>10}" for name in columns)
    print(f"{report.target:14}{report.counts.total():7d}{counts}{report.seconds:9.0f}", flush=True)


def _print_failures(report: Report, seed: int, *, everything: bool) -> None:
    shown: dict[str, int] = {}
    for case, kind, detail in report.failures:
        shown[kind] = shown.get(kind, 0) + 1
        if everything or shown[kind] <= SHOWN_FAILURES:
            print(f"\n{kind}: {detail}\n  python -m fuzz --only {report.target} --case {case} --seed {seed}")


def _run_faults(kills: int, seed: int, seconds: float) -> bool:
    """Kill writers, fill the disk and so on; print the counts and failures; whether anything failed."""
    counts, failures = faults.run(kills, seed, seconds)
    print(f"\n{FAULTS}")
    for kind, count in sorted(counts.items()):
        print(f"{count:8d} {kind}")
    for failure in failures:
        print(failure)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
