"""Evaluate a log in parts under a limit of memory, in a process of its own.

    python memory.py LOG SMALL_LOG MIB

SMALL_LOG, of the same format, is evaluated first, so that everything is imported and compiled; then the process may
take MIB more mebibytes (RLIMIT_DATA), and its peak of anonymous memory is recorded. Two evaluations are made and
compared, and one gives intervals of values. Prints the steps of the log, the peak in mebibytes and the smaller
standard error, of the value or of the difference.
"""

from __future__ import annotations

import re
import resource
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import valuefit as vf

LIMIT = 8 << 20  # bytes, of `load`


def memory(name: str) -> int:
    """Bytes of this process, by a name of /proc/self/status."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def evaluate(path: str) -> Any:
    log = vf.load(path, memory="stream", limit=LIMIT)
    found, other = (vf.evaluate(log, features="identity", discount=0.9, trace=trace) for trace in (0.0, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the small log has few episodes
        intervals = found.value_interval(found.log.observations[:500], simultaneous=True)
    assert np.isfinite(intervals).all()
    return log.steps, min(found.policy_value.standard_error, vf.compare(found, other).standard_error)


def main(path: str, small: str, mib: str) -> None:
    evaluate(small)
    before, peak, done = memory("RssAnon"), [0], threading.Event()
    resource.setrlimit(resource.RLIMIT_DATA, (memory("VmData") + (int(mib) << 20), resource.RLIM_INFINITY))

    def watch() -> None:
        while not done.wait(0.003):
            peak[0] = max(peak[0], memory("RssAnon") - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        steps, error = evaluate(path)
    finally:
        done.set()
        watcher.join()
    print(steps, peak[0] / 2**20, error)


if __name__ == "__main__":
    main(*sys.argv[1:])
