"""Evaluate draws in several processes and keep what was found, one JSON file per cell, so that a run can be resumed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import valuefit as vf
from valuefit.atomic import write_bytes
from valuefit.threads import limit_threads

Record = dict[str, Any]
Draw = Callable[[np.random.Generator], tuple[vf.Transitions, dict[str, Any], float]]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "coverage"
DRAWN_FROM = (
    "automatic.py", "control.py", "designs.py", "difficult.py", "held_out.py", "published.py", "quiet.py",
    "splines.py", "synthetic.py", "tasks.py", "truths.json", "worlds.py",
)  # fmt: skip
SAVE_SECONDS = 20.0  # between two writes of a file


def generator(name: str, replication: int) -> np.random.Generator:
    """Random numbers of one replication of a cell."""
    return np.random.default_rng((zlib.crc32(name.encode()), replication))


def evaluated(log: vf.Transitions, settings: dict[str, Any], truth: float) -> Record:
    """What one evaluation found. interval: None where there is none. refused: the message, where it was refused.

    seconds: of processor time.
    """
    started = time.process_time()
    try:
        evaluation = vf.evaluate(log, **settings)
    except ValueError as error:
        return {"truth": truth, "refused": str(error), "seconds": time.process_time() - started}
    seconds, value = time.process_time() - started, evaluation.policy_value
    return {
        "truth": truth,
        "estimate": value.estimate,
        "standard_error": value.standard_error,
        "interval": value.interval,
        "effective_episodes": value.effective_episodes,
        "level": evaluation.verdict.level,
        "checks": [
            [check.name, check.outcome, check.statistic, check.p_value, check.size, check.size_error]
            for check in evaluation.checks
        ],
        "steps": len(log),
        "weights": evaluation.problem.d - len(evaluation.problem.dead),
        "cross_checks": [[entry.name, entry.effective_episodes, entry.agrees] for entry in evaluation.cross_checks],
        "seconds": seconds,
    }


class Cell:
    """The replications of one cell. draw: random numbers -> log, arguments of `vf.evaluate`, truth."""

    def __init__(self, name: str, draw: Draw, folder: Path = FOLDER) -> None:
        self.name, self.draw, self.path = name, draw, folder / f"{name}.json"

    def run(self, replication: int) -> Record:
        return evaluated(*self.draw(generator(self.name, replication)))

    def load(self, *, keep: bool = False) -> dict[int, Record]:
        """Stored replications; those of other sources only if `keep`."""
        if not self.path.exists():
            return {}
        stored = json.loads(self.path.read_text())
        if stored["sources"] != sources() and not keep:
            return {}
        return {int(replication): record for replication, record in stored["records"].items()}

    def save(self, records: dict[int, Record]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ordered = {str(replication): records[replication] for replication in sorted(records)}
        write_bytes(self.path, json.dumps({"sources": sources(), "records": _plain(ordered)}).encode())


@cache
def sources() -> str:
    """A digest of the sources of valuefit and of what is drawn: numbers of different versions are not mixed."""
    files = sorted((ROOT / "src" / "valuefit").rglob("*.py")) + [ROOT / "coverage_study" / name for name in DRAWN_FROM]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def run_cells(
    cells: list[Cell],
    replications: int | Sequence[int],
    *,
    jobs: int = 2,
    seconds: float = float("inf"),
    keep: bool = False,
) -> Iterator[tuple[Cell, dict[int, Record]]]:
    """Run what is missing in each cell, within `seconds` altogether, and yield each cell with all its records.

    replications: of every cell, or of each. They are stored while they run, also when the run is interrupted.
    """
    ends = time.monotonic() + seconds
    stored = [cell.load(keep=keep) for cell in cells]
    counts = [replications] * len(cells) if isinstance(replications, int) else replications
    missing = [
        [number for number in range(count) if number not in records]
        for count, records in zip(counts, stored, strict=True)
    ]
    work = [(cell.run, number) for cell, numbers in zip(cells, missing, strict=True) for number in numbers]
    with _pool(work, jobs) as results:
        for cell, records, numbers in zip(cells, stored, missing, strict=True):
            _collect(cell, records, numbers, results, ends)
            yield cell, records


def _collect(
    cell: Cell, records: dict[int, Record], numbers: list[int], results: Iterator[Record], ends: float
) -> None:  # fmt: skip
    """Add these replications of a cell, the next of the results, until the time ends; store them."""
    saved = time.monotonic()
    try:
        for number in numbers:
            if time.monotonic() > ends:
                return
            records[number] = next(results)
            if time.monotonic() - saved > SAVE_SECONDS:
                cell.save(records)
                saved = time.monotonic()
    finally:
        if numbers:
            cell.save(records)


_work: Sequence[tuple[Callable[[int], Record], int]]  # of the pool, set before it forks: draws cannot be pickled


@contextmanager
def _pool(work: Sequence[tuple[Callable[[int], Record], int]], jobs: int) -> Iterator[Iterator[Record]]:
    """Results of the work in order, from several processes; with jobs=0 from this one."""
    global _work
    _work = work
    if jobs == 0:
        yield map(_run_one, range(len(work)))
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=_ignore_interrupts) as pool:
        yield pool.imap(_run_one, range(len(work)))


def _ignore_interrupts() -> None:
    """Ctrl-C is for the parent, which stores what is finished."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_one(place: int) -> Record:
    run, number = _work[place]
    with limit_threads(1):
        return run(number)


def _plain(value: Any) -> Any:
    """JSON without NaN and infinity, which become None."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
