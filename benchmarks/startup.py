"""The time of a small evaluation in a new process, relative to importing NumPy, scipy.linalg and numba.

`python -m benchmarks.startup [--repeats 9]` evaluates a CSV file of 1,000 rows on the command line and from Python,
with the existing numba cache (warm) and with an empty one. Each run alternates with a run of the imports alone; medians
of the ratios are printed. Targets: at most 2 warm, at most 2.5 with an empty cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TARGETS = {"warm": 2.0, "empty cache": 2.5}  # largest ratio to the imports
IMPORTS = ["-c", "import numpy, scipy.linalg, numba"]


def write_log(path: Path, steps: int = 1000) -> None:
    """Write a log with three observation columns and episodes of 50 steps."""
    x = np.random.default_rng(0).standard_normal((steps, 3))
    for t in range(1, steps):
        x[t] += 0.9 * x[t - 1] * (t % 50 > 0)
    ends = np.arange(steps) % 50 == 49
    columns = [np.arange(steps) // 50, *x.T, x.sum(axis=1), ends]
    np.savetxt(
        path, np.column_stack(columns), ["%d", "%.6f", "%.6f", "%.6f", "%.6f", "%d"], ",", comments="",
        header="episode,obs_0,obs_1,obs_2,reward,terminated",
    )  # fmt: skip


def seconds(arguments: list[str], cache: str | None) -> float:
    """Wall-clock seconds of a new Python process; cache: directory of the numba cache, None for the default."""
    environment = {**os.environ} if cache is None else {**os.environ, "NUMBA_CACHE_DIR": cache}
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def measure(repeats: int) -> dict[tuple[str, str], tuple[float, float]]:
    """(command, state of the cache) -> (median seconds, median ratio to the alternating run of the imports)."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        write_log(log)
        commands = {
            "valuefit evaluate": ["-m", "valuefit", "evaluate", str(log), "--discount", "0.9"],
            "valuefit.evaluate": ["-c", f"import valuefit; valuefit.evaluate({str(log)!r}, discount=0.9)"],
        }
        for arguments in (IMPORTS, *commands.values()):
            seconds(arguments, None)  # warm up: byte code, file cache and numba cache
        for name, arguments in commands.items():
            for state in TARGETS:
                times: list[tuple[float, float]] = []
                for _ in range(repeats):
                    with tempfile.TemporaryDirectory() as empty:
                        cache = None if state == "warm" else empty
                        times.append((seconds(arguments, cache), seconds(IMPORTS, None)))
                ratio = statistics.median(own / imports for own, imports in times)
                found[name, state] = statistics.median(own for own, _ in times), ratio
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a small evaluation in new processes.")
    parser.add_argument("--repeats", type=int, default=9)
    for (name, state), (median, ratio) in measure(parser.parse_args().repeats).items():
        met = "met" if ratio <= TARGETS[state] else "missed"
        print(f"{name}, {state}: {median:.2f} s, {ratio:.2f} of the imports (target {TARGETS[state]}: {met})")


if __name__ == "__main__":
    main()
