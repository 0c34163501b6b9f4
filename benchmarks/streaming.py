"""Evaluate logs in shards: seconds and memory by number of steps, next to a plain read of the same bytes.

Writes benchmarks/streaming.md. Each size runs in a process of its own, whose peak of anonymous memory is recorded:
    python -m benchmarks.streaming [--steps 1e6 1e7] [--width 8] [--folder FOLDER]
    python -m benchmarks.streaming --gigabytes 20 --width 64 --features identity
The second evaluates a log of 20 GB, and fails if that takes more than 2 GB of memory; it needs 20 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

import valuefit as vf
from valuefit.atomic import write_bytes
from valuefit.data.readers.native import LOG_FORMAT, METADATA_FILE

PAGE = Path(__file__).with_name("streaming.md")
LENGTH = 200  # steps in an episode
COLUMN_BYTES = 43  # of a step in a saved folder, besides its observation
MAX_PEAK = 2e9  # bytes of memory
BLOCK = 1_000_000  # steps that are written at a time
LIMIT = 256 << 20  # bytes that a stream may hold


def write_log(folder: Path, steps: int, width: int) -> None:
    """An autoregression of `width` float32 numbers in valuefit's own format, written in blocks."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    columns = {
        "observations": (np.float32, (steps, width)), "now": (np.int64, (steps,)), "next": (np.int64, (steps,)),
        "reward": (np.float64, (steps,)), "terminated": (bool, (steps,)), "truncated": (bool, (steps,)),
        "episode": (np.int64, (steps,)), "ratio": (np.float64, (steps,)), "begins": (bool, (steps,)),
    }  # fmt: skip
    files: dict[str, Any] = {}
    for name, (dtype, shape) in columns.items():
        files[name] = (folder / f"{name}.npy").open("wb")  # closed below
        header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(files[name], header)
    for first in range(0, steps, BLOCK):
        t = np.arange(first, min(first + BLOCK, steps))
        episodes = len(t) // LENGTH
        x = np.empty((LENGTH, episodes, width), np.float32)
        x[0] = rng.standard_normal((episodes, width), np.float32)
        for step in range(1, LENGTH):
            x[step] = 0.9 * x[step - 1] + 0.3 * rng.standard_normal((episodes, width), np.float32)
        observations = x.transpose(1, 0, 2).reshape(-1, width)
        last = t % LENGTH == LENGTH - 1
        values = {
            "observations": observations, "now": t, "next": np.where(last, -1, t + 1),
            "reward": observations[:, 0].astype(np.float64), "terminated": last, "truncated": np.zeros(len(t), bool),
            "episode": t // LENGTH, "ratio": np.ones(len(t)), "begins": t % LENGTH == 0,
        }  # fmt: skip
        for name, value in values.items():
            files[name].write(np.ascontiguousarray(value, columns[name][0]).tobytes())
    for file in files.values():
        file.close()
    facts = {"format": LOG_FORMAT, "steps": steps, "notes": [], "names": [], "warnings": []}
    (folder / METADATA_FILE).write_text(json.dumps(facts))


def anonymous_memory() -> int:
    """Bytes of this process that no file backs."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def drop_from_cache(folder: Path) -> None:
    for file in folder.iterdir():
        with open(file, "rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: Path, features: str) -> dict[str, float]:
    """Seconds of a plain read of all files, of `evaluate`, and the peak of memory while that runs.

    Both begin with files that are not in the page cache.
    """
    drop_from_cache(folder)
    started = time.perf_counter()
    size = 0
    for file in sorted(folder.iterdir()):
        with open(file, "rb", buffering=0) as stream:
            while block := stream.read(16 << 20):
                size += len(block)
    read = time.perf_counter() - started
    drop_from_cache(folder)
    log = vf.load(folder, memory="stream", limit=LIMIT)
    peak, done = [anonymous_memory()], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    value = vf.evaluate(log, features=features, discount=0.95).policy_value
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return {
        "steps": log.steps, "bytes": size, "read": read, "seconds": seconds, "peak": peak[0],
        "estimate": value.estimate, "standard_error": value.standard_error or 0.0,
    }  # fmt: skip


def table(records: list[dict[str, Any]], width: int) -> str:
    lines = [
        "# Logs in shards",
        "",
        f"Logs of {width} float32 numbers a step in valuefit's own format, episodes of {LENGTH} steps, "
        f"`limit={LIMIT >> 20} MiB`; time and memory of `evaluate` with interval and checks. Made by "
        "`python -m benchmarks.streaming`.",
        "",
        "| steps | features | size | plain read | evaluate | microseconds a step | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in records:
        lines.append(
            f"| {one['steps']:.0e} | {one['features']} | {one['bytes'] / 2**30:.2f} GiB | {one['read']:.1f} s | "
            f"{one['seconds']:.1f} s | {1e6 * one['seconds'] / one['steps']:.2f} | {one['peak'] / 2**20:.0f} MiB |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=float, nargs="*", default=[1e6, 1e7, 1e8])
    parser.add_argument("--gigabytes", type=float, nargs="*", help="Sizes of the logs, instead of numbers of steps.")
    parser.add_argument("--width", type=int, default=8, help="float32 numbers in an observation.")
    parser.add_argument("--features", nargs="*", default=["identity"])
    parser.add_argument("--folder", help="Where the logs are written; a temporary one by default.")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), options.measure[1])))
        return
    records = []
    sizes = options.steps
    if options.gigabytes:
        sizes = [1e9 * size / (4 * options.width + COLUMN_BYTES) // LENGTH * LENGTH for size in options.gigabytes]
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        for steps in sizes:
            folder = Path(place) / f"{int(steps)}"
            write_log(folder, int(steps), options.width)
            for features in options.features:
                command = [sys.executable, "-m", "benchmarks.streaming", "--measure", str(folder), features]
                found = subprocess.run(command, capture_output=True, text=True, check=True)
                records.append({**json.loads(found.stdout), "features": features})
                print(records[-1], flush=True)
            shutil.rmtree(folder)
    peak = max(record["peak"] for record in records)
    if peak > MAX_PEAK:
        sys.exit(f"The peak of memory was {peak / 1e9:.1f} GB, more than {MAX_PEAK / 1e9:.0f}.")
    if not options.gigabytes:
        write_bytes(PAGE, table(records, options.width).encode(), force=True)


if __name__ == "__main__":
    main()
