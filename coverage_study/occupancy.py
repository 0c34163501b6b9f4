"""What the occupancy weights say on the stored logs of `coverage_study.verdict`: errors, coverage and soundness.

By route, for logs whose negative share, or whose effective number of steps, is in an interval; the limits of the checks
were chosen on the fitted tasks. With TASK names, those tasks alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from coverage_study.records import FOLDER, Record
from coverage_study.statistics import covers, with_interval
from coverage_study.tasks import FIT, ROUTES, TEST, tasks
from coverage_study.verdict import cell_of, keys_of
from valuefit.checks.occupancy import NAMES

BOUNDS = {
    NAMES[0]: (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5),
    NAMES[1]: (0.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0, 300.0, np.inf),
}


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m coverage_study.occupancy", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TASK")
    parser.add_argument("--folder", type=Path, default=FOLDER / "verdict")
    options = parser.parse_args(arguments)
    groups = {"named": options.names} if options.names else {"fitted": FIT, "tested": TEST}
    for title, names in groups.items():
        records = {route: _records(names, route, options.folder) for route in ROUTES}
        for check, bounds in BOUNDS.items():
            print(f"\n{check}, tasks that are {title}")
            print(f"{'route':14}{'from':>6}{'to':>6}{'logs':>7}{'median error':>14}{'90%':>7}{'covered':>9}"
                  f"{'else sound':>12}{'covered':>9}")  # fmt: skip
            for route, own in records.items():
                for low, high in pairwise(bounds):
                    _print_row(route, low, high, [one for one in own if low <= _statistic(one, check) < high])


def _records(names: Sequence[str], route: str, folder: Path) -> list[Record]:
    """The stored records of these tasks without a planted fault, by this route."""
    keys = [key for name in names if not tasks()[name].fault for key in keys_of(tasks()[name]) if key.route == route]
    cells = [cell_of(key, folder) for key in keys]
    return [record for cell in cells for record in cell.load(keep=True).values() if "checks" in record]


def _statistic(record: Record, name: str) -> float:
    found = next((check[2] for check in record["checks"] if check[0] == name), None)
    return np.nan if found is None else float(found)


def _else_sound(record: Record) -> bool:
    """Whether the other checks alone pass."""
    return not any(check[1] in ("warn", "fail") for check in record["checks"] if check[0] not in NAMES)


def _print_row(route: str, low: float, high: float, records: list[Record]) -> None:
    if not records:
        return
    errors = [abs(record["estimate"] - record["truth"]) / abs(record["truth"]) for record in records]
    known = with_interval(records)
    sound = [record for record in known if _else_sound(record)]
    covered, of_sound = (f"{np.mean(list(map(covers, some))):.0%}" if some else "" for some in (known, sound))
    print(
        f"{route:14}{low:6g}{high:6g}{len(records):7d}{np.median(errors):14.1%}{np.quantile(errors, 0.9):7.0%}"
        f"{covered:>9}{len(sound) / len(records):12.0%}{of_sound:>9}"
    )


if __name__ == "__main__":
    main()
