"""The benchmark grid of `make bench`: every cell, with our solvers at their defaults and with other implementations.

`python -m benchmarks.grid [--only SUBSTRING] [--solvers a,b] [--quick]` runs the tasks that have no result for the
current sources, so an interrupted run continues where it stopped (`--again` discards earlier results). It writes
`results.md`, `results.json` and `results.png` into `benchmarks/`, or into `build/benchmarks/` for a part of the grid.
Each cell runs in its own process; a task that exceeds its time limit is killed and reported.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.cells import CELLS
from benchmarks.tasks import OWN, PAIRED_THREADS, PEERS, plain, tasks_of

HERE = Path(__file__).parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "benchmarks"
MEASURED_BY = ("cells.py", "engine.py", "peers.py", "reference.py", "tasks.py")
Record = dict[str, Any]


def digest(*names: str) -> str:
    """A digest of the library and these benchmark files, so that results of other sources are not reused."""
    sources = [*sorted((ROOT / "src").rglob("*.py")), *(HERE / name for name in names)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def origin() -> str:
    """A digest of the sources of the logs and their exact solutions, which are reused while solvers change."""
    package = ROOT / "src" / "valuefit"
    sources = [HERE / "cells.py", HERE / "reference.py", package / "data" / "transitions.py"]
    sources += sorted(path for part in ("datasets", "features") for path in (package / part).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


class Kept:
    """Results of one cell, stored in a file after each task."""

    def __init__(self, path: Path, sources: str, *, again: bool = False) -> None:
        self.path, self.sources = path, sources
        self.tasks: dict[str, Record] = {}
        if path.exists() and not again:
            kept = json.loads(path.read_text())
            self.tasks = kept["tasks"] if kept["sources"] == sources else {}

    def add(self, task: str, record: Record) -> None:
        self.tasks[task] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"sources": self.sources, "tasks": self.tasks}))
        partial.replace(self.path)


def environment() -> dict[str, str]:
    """As many threads as a task may ask for (one by default), and one cache of compiled code for all processes."""
    most = str(max(PAIRED_THREADS))
    limits = {"OPENBLAS_NUM_THREADS": most, "OMP_NUM_THREADS": most, "NUMBA_NUM_THREADS": most}
    cache = os.environ.get("NUMBA_CACHE_DIR", str(ROOT / ".numba_cache" / digest("peers.py", "reference.py")))
    return {**os.environ, **limits, "NUMBA_CACHE_DIR": cache}


def run_tasks(cell: str, tasks: list[str], kept: Kept, *, seconds: float, quick: bool, store: Path) -> None:
    """Run these tasks in a child process; after a task that hangs or crashes, a new process runs the rest."""
    left = list(tasks)
    while left:
        command = [sys.executable, "-m", "benchmarks.tasks", cell, *left, "--seconds", str(seconds)]
        command += ["--store", str(store), *(["--quick"] if quick else [])]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_forward_lines, args=(child, lines), daemon=True).start()
        try:
            _collect(cell, left, kept, lines, seconds)
        finally:
            child.kill()
            child.wait()


def _collect(cell: str, left: list[str], kept: Kept, lines: queue.Queue[str | None], seconds: float) -> None:
    """Store results of a child process until it ends or a task times out; finished tasks are removed from `left`."""
    began, allowed = time.monotonic(), 600.0
    while True:
        try:
            line = lines.get(timeout=max(allowed - (time.monotonic() - began), 0.1))
        except queue.Empty:
            _fail(cell, kept, left.pop(0), "killed", f"not finished after {allowed:.0f} s")
            return
        if line is None and left:
            _fail(cell, kept, left.pop(0), "died", "its process ended, perhaps out of memory")
        if line is None:
            return
        message = json.loads(line)
        began = time.monotonic()
        allowed = 600.0 if message.get("begins") == "reference" else max(12 * seconds, 120.0)
        if "task" in message:
            kept.add(message["task"], message["record"])
            left.remove(message["task"])
            _print_record(cell, message["task"], message["record"])


def _forward_lines(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Put the output of `child` into the queue, and None at its end."""
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def _fail(cell: str, kept: Kept, task: str, status: str, message: str) -> None:
    kept.add(task, {"status": status, "message": message})
    _print_record(cell, task, kept.tasks[task])


def _print_record(cell: str, task: str, record: Record) -> None:
    shown = {key: record[key] for key in ("status", "passes", "seconds", "gap") if record.get(key) is not None}
    words = ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else str(value) for key, value in shown.items())
    print(f"{cell:32s} {task:14s} {words}", flush=True)


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def wanted_tasks(cell: str, solvers: list[str] | None) -> list[str]:
    """The tasks of a cell, or only those of the named solvers and implementations."""
    tasks = tasks_of(CELLS[cell])
    if solvers is None:
        return tasks
    return [task for task in tasks if task == "reference" or task.partition("@")[0] in solvers]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the benchmark grid.")
    parser.add_argument("--only", action="append", help="cells whose name contains this; repeatable")
    parser.add_argument("--solvers", help="names of solvers and other implementations, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small cells, to test the code")
    parser.add_argument(
        "--seconds", type=float, help="time limit of a solver in a cell, more in large cells (10; 3 with --quick)"
    )
    parser.add_argument("--again", action="store_true", help="discard earlier results")
    parser.add_argument("--out", type=Path, help="folder for the results")
    given = parser.parse_args(arguments)
    solvers = given.solvers.split(",") if given.solvers else None
    unknown = set(solvers or ()) - {*OWN, *PEERS, "dgemm", "paired", "statistical"}
    if unknown:
        raise SystemExit(f"There is no {unknown.pop()!r} in the grid; it has {', '.join((*OWN, *PEERS))}.")
    cells = [name for name in CELLS if any(part in name for part in given.only or [""])]
    if not cells:
        raise SystemExit(
            f"No cell has {' or '.join(map(repr, given.only))} in its name; the cells are: {'; '.join(CELLS)}."
        )
    whole = not (given.only or solvers or given.quick)
    seconds = given.seconds or (3.0 if given.quick else 10.0)
    work = BUILD / ("quick" if given.quick else "cells")
    sources = digest(*MEASURED_BY)
    results: Record = {"cells": {}, "engine": None, "seconds": seconds, "quick": given.quick}
    for name in cells:
        kept = Kept(work / f"{slug(name)}.json", sources, again=given.again)
        tasks = wanted_tasks(name, solvers)
        todo = [task for task in tasks if task not in kept.tasks]
        store = work / f"{slug(name)}.{origin()}.npz"
        for old in set(work.glob(f"{slug(name)}.*.npz")) - {store}:
            old.unlink()
        run_tasks(name, todo, kept, seconds=seconds, quick=given.quick, store=store)
        cell = CELLS[name].shrunk() if given.quick else CELLS[name]
        results["cells"][name] = {
            "kind": cell.kind, "about": cell.about, "sparse": cell.sparse, "n": cell.n, "d": cell.d,
            "tasks": {task: kept.tasks[task] for task in tasks},
        }  # fmt: skip
    if whole:
        kept = Kept(work / "engine.json", sources, again=given.again)
        if "engine" not in kept.tasks:
            run_tasks("engine", ["engine"], kept, seconds=seconds, quick=False, store=work / "engine.npz")
        results["engine"] = kept.tasks["engine"]
    out = given.out or (HERE if whole else BUILD)
    report.write(plain(results), out)
    print(f"Written to {out / 'results.md'}, results.json and results.png")


if __name__ == "__main__":
    main()
