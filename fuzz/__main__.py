"""Run every target, print counts by outcome and each failure with the command that repeats it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import sys
import tempfile
import time

from fuzz import array_files, calls, commands, logs, stored, text_files
from fuzz.outcome import ALLOWED, FAILURES
from fuzz.runner import Report, Target, run

MODULES = (text_files, logs, array_files, stored, calls, commands)
TARGETS: dict[str, Target] = {target.name: target for module in MODULES for target in module.TARGETS}
# modules with `run(count, seed, seconds)`, which returns counts and failures: their count and seconds in a full run
OTHERS = {"differential": (2000, 120.0), "faults": (300, 120.0)}
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
    if options.only is None and options.cases is None:
        failed |= sum(_run_other(name, *size, options.seed) for name, size in OTHERS.items()) > 0
    print(f"\n{time.monotonic() - started:.0f} s" + (": something failed." if failed else ": nothing failed."))
    return int(failed)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=TARGETS, metavar="TARGET", help=f"Targets: {', '.join(TARGETS)}.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="Run this case alone.")
    parser.add_argument("--cases", type=int, help="Cases per target, instead of 5,000 (1,000 for some formats).")
    parser.add_argument("--seconds", type=float, default=900.0, help="Maximum time of all targets together.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    parser.add_argument("--all", action="store_true", help="Print every failure.")
    return parser.parse_args(arguments)


def _print_row(report: Report, *, first: bool) -> None:
    columns = (*ALLOWED, *FAILURES)
    if first:
        print(f"{'target':12}{'cases':>7}" + "".join(f"{name:>10}" for name in columns) + f"{'seconds':>9}")
    counts = "".join(f"{report.counts[name] or '-':>10}" for name in columns)
    print(f"{report.target:12}{report.counts.total():7d}{counts}{report.seconds:9.0f}", flush=True)


def _print_failures(report: Report, seed: int, *, everything: bool) -> None:
    shown: dict[str, int] = {}
    for case, kind, detail in report.failures:
        shown[kind] = shown.get(kind, 0) + 1
        if everything or shown[kind] <= SHOWN_FAILURES:
            print(f"\n{kind}: {detail}\n  python -m fuzz --only {report.target} --case {case} --seed {seed}")


def _run_other(name: str, count: int, seconds: float, seed: int) -> bool:
    """Run another module of this package, print its counts and failures; whether anything failed."""
    if importlib.util.find_spec(f"fuzz.{name}") is None:
        return False
    counts, failures = importlib.import_module(f"fuzz.{name}").run(count, seed, seconds)
    print(f"\n{name}: " + ", ".join(f"{counts[key]} {key}" for key in sorted(counts)))
    for failure in failures:
        print(f"  {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
