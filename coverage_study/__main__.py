"""Measure the coverage of intervals on every design; write docs/coverage.md and its figure from what is stored."""

from __future__ import annotations

import argparse
import sys

from coverage_study import page
from coverage_study.designs import DESIGNS
from coverage_study.records import Cell, run_cells
from coverage_study.statistics import Summary, summarise

REPLICATIONS = 1000


def main(arguments: list[str] | None = None) -> int:
    """Run the designs; returns the exit status, 1 if a design misses the rule and 130 after Ctrl-C."""
    options = _parse(arguments)
    names, summaries = options.only or list(DESIGNS), {}
    print(f"{'design':26}{'logs':>6}{'coverage':>10}{'99.9% interval':>16}{'length':>9}{'nu':>7}{'warned':>8}  rule")
    cells = [Cell(name, DESIGNS[name].draw) for name in names]
    try:
        for cell, records in run_cells(
            cells, options.replications, jobs=options.jobs, seconds=options.seconds, keep=options.keep
        ):
            if records:
                summaries[cell.name] = summarise(list(records.values()))
                _print_row(cell.name, summaries[cell.name])
    except KeyboardInterrupt:
        print("Interrupted; the same command resumes.")
        return 130
    if options.only is None and len(summaries) == len(names):
        print(f"Wrote {page.write(summaries)}")
    return int(not all(summary.met for summary in summaries.values()))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m coverage_study", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=DESIGNS, metavar="NAME", help=f"Designs: {', '.join(DESIGNS)}.")
    parser.add_argument("--replications", type=int, default=REPLICATIONS, help="Logs per design.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="Maximum time of all designs together.")
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    parser.add_argument("--keep", action="store_true", help="Go on with records of other sources.")
    return parser.parse_args(arguments)


def _print_row(name: str, summary: Summary) -> None:
    low, high = summary.coverage.interval
    print(
        f"{name:26}{summary.replications:6d}{summary.coverage.value:10.1%}{f'{low:.1%} {high:.1%}':>16}"
        f"{summary.length:9.3g}{summary.effective_episodes:7.1f}{summary.warned:8.0%}  "
        f"{'met' if summary.met else 'missed'} ({summary.seconds:.3f} s)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
