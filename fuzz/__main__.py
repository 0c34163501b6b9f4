"""`python -m fuzz`: run every target, print counts by outcome and each failure with the command that repeats it."""

from __future__ import annotations

import argparse
import sys

from fuzz import array_files, calls, commands, logs, stored, text_files
from fuzz.outcome import ALLOWED, FAILURES
from fuzz.runner import Report, Target, run

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (text_files, logs, array_files, stored, calls, commands)
    for target in module.TARGETS
}
SHOWN_FAILURES = 5  # of one target and kind


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen targets; returns the exit status, 1 if anything failed."""
    options = _parse(arguments)
    reports: list[Report] = []
    for name in options.only or TARGETS:
        target = TARGETS[name]
        cases = (
            range(options.case, options.case + 1) if options.case is not None else range(options.cases or target.cases)
        )
        reports.append(run(target, seed=options.seed, cases=cases, jobs=options.jobs, seconds=options.seconds))
        _print_row(reports[-1], first=len(reports) == 1)
        sys.stdout.flush()
    for report in reports:
        _print_failures(report, options.seed, everything=options.all)
    return int(any(report.failures for report in reports))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=TARGETS, metavar="TARGET", help=f"Targets: {', '.join(TARGETS)}.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="Run this case alone.")
    parser.add_argument("--cases", type=int, help="Cases per target, instead of 5,000 (1,000 for some formats).")
    parser.add_argument("--seconds", type=float, default=120.0, help="Maximum time per target.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    parser.add_argument("--all", action="store_true", help="Print every failure.")
    return parser.parse_args(arguments)


def _print_row(report: Report, *, first: bool) -> None:
    columns = (*ALLOWED, *FAILURES)
    if first:
        print(f"{'target':12}{'cases':>7}" + "".join(f"{name:>10}" for name in columns) + f"{'seconds':>9}")
    counts = "".join(f"{report.counts[name] or '-':>10}" for name in columns)
    print(f"{report.target:12}{report.counts.total():7d}{counts}{report.seconds:9.0f}")


def _print_failures(report: Report, seed: int, *, everything: bool) -> None:
    shown: dict[str, int] = {}
    for case, kind, detail in report.failures:
        shown[kind] = shown.get(kind, 0) + 1
        if everything or shown[kind] <= SHOWN_FAILURES:
            print(f"\n{kind}: {detail}\n  python -m fuzz --only {report.target} --case {case} --seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
