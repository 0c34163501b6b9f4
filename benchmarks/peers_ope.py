"""valuefit next to other libraries on the same logs, where the answer is known.

The other libraries are in none of our extras. An environment for all of them (Python 3.11, with this repository as the
working directory; torch takes several GiB):

    python3.11 -m venv .venv-peers
    .venv-peers/bin/pip install -e . gymnasium==1.0.0 d3rlpy==2.8.1 obp==0.4.1 scope-rl==0.2.1 econml==0.17.0
    .venv-peers/bin/python -m benchmarks.peers_ope

What does not import is named and left out; valuefit alone runs in the usual environment. Results are kept in
build/peers while they are computed, so that a run can be interrupted and resumed, and the table is written to
`benchmarks/peers_ope.md`. `benchmarks/ope_tasks.py` has the tasks, `benchmarks/ope_libraries.py` how each library is
used. Seconds are of processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.ope_libraries import LIBRARIES, LOGS
from benchmarks.ope_tasks import TASKS, Task
from coverage_study.records import ROOT, Cell, Record, generator, run_cells

PAGE = Path(__file__).with_name("peers_ope.md")
FOLDER = ROOT / "build" / "peers"
HEADER = "| task | library, estimator | logs | RMSE | mean error | covered | seconds |"


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the progress that libraries print, the warnings they raise and the files they write."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.chdir(folder):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield


class PeerCell(Cell):
    """One library on the logs of a task; a record has estimates by estimator, and the seconds of all of them."""

    def __init__(self, task: Task, name: str) -> None:
        self.task, self.library = task, name
        super().__init__(f"{task.name}-{name}", lambda rng: (task.log(rng), {}, task.truth), FOLDER)

    def run(self, replication: int) -> Record:
        log = self.task.log(generator(self.task.name, replication))  # the same for all libraries
        with quietly():
            started = time.process_time()
            found = LIBRARIES[self.library].run(self.task, log, replication)
            return {"found": found, "seconds": time.process_time() - started}


def importable() -> tuple[dict[str, str], dict[str, str]]:
    """Versions of the libraries that can be imported, and why the others cannot."""
    versions, missing = {}, {}
    for name, library in LIBRARIES.items():
        try:
            with quietly():
                importlib.import_module(library.module)
            versions[name] = importlib.metadata.version(library.package)
        except ImportError as error:
            missing[name] = f"{type(error).__name__}: {error}"
    return versions, missing


def rows(task: Task, package: str, records: list[Record]) -> list[str]:
    """A line of the table for each estimator: RMSE and mean error relative to the truth, coverage, seconds a log."""
    lines, seconds = [], float(np.median([record["seconds"] for record in records]))
    for name in records[0]["found"]:
        estimates, intervals = zip(*(record["found"][name] for record in records), strict=True)
        error = (np.array(estimates) - task.truth) / abs(task.truth)
        inside = [low <= task.truth <= high for low, high in filter(None, intervals)]
        covered = f"{sum(inside)} of {len(inside)}" if inside else "none"
        rmse = float(np.sqrt(np.mean(error**2)))
        lines.append(
            f"| {task.name} | {package}, {name} | {len(records)} | {rmse:.1%} | {error.mean():+.1%} | {covered} "
            f"| {seconds:.2g} |"
        )
    return lines


def page(versions: dict[str, str], missing: dict[str, str], table: list[str]) -> str:
    """The text of peers_ope.md."""
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    paragraphs = [
        "# valuefit next to other libraries",
        f"Written by `python -m benchmarks.peers_ope` on {date.today():%d %B %Y}: {listed}. The same logs for all, the "
        "first ones where a network is trained for each. Errors are relative to the true value; covered: how many 95% "
        "intervals contain it; seconds: median processor time for a log, of all rows of a library and task together.",
        *(f"Left out: {name} ({reason})." for name, reason in missing.items()),
        "\n".join([HEADER, "|---" * HEADER.count(" | ") + "|---|", *table]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def compare(versions: dict[str, str], logs: int, *, jobs: int, seconds: float) -> list[str]:
    """Run what is missing, at most this many logs of each task, and return the lines of the table."""
    ends, lines = time.monotonic() + seconds, []
    for task in (make() for make in TASKS.values()):
        found = {}
        for cell in (PeerCell(task, name) for name in versions if task.name in LIBRARIES[name].logs):
            count = min(logs, LIBRARIES[cell.library].logs[task.name])
            [(_, records)] = run_cells([cell], count, jobs=jobs, seconds=ends - time.monotonic())
            if records:
                found[cell.library] = [records[number] for number in sorted(records)]
                print("\n".join(rows(task, LIBRARIES[cell.library].package, found[cell.library])), flush=True)
        lines += table_of(task, found)
    return lines


def table_of(task: Task, found: dict[str, list[Record]]) -> list[str]:
    """The rows of a task; those of valuefit also on the logs that every library had, where these are fewer."""
    lines = [line for library, records in found.items() for line in rows(task, LIBRARIES[library].package, records)]
    fewest = min(map(len, found.values()), default=0)
    if "valuefit" in found and fewest < len(found["valuefit"]):
        lines += rows(task, "valuefit", found["valuefit"][:fewest])
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers_ope", description=__doc__)
    parser.add_argument("--logs", type=int, default=LOGS, help="at most this many logs of each task")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 0 runs everything in this one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after the log at which they are over")
    options = parser.parse_args(arguments)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # all on the CPU
    versions, missing = importable()
    for name, reason in missing.items():
        print(f"Left out: {name} ({reason})")
    table = compare(versions, options.logs, jobs=options.jobs, seconds=options.seconds)
    packages = {LIBRARIES[name].package: version for name, version in versions.items()}
    PAGE.write_text(page(packages, missing, table))


if __name__ == "__main__":
    main()
