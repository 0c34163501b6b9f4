"""Run the cases of a target in forked children: a batch per child, which is replaced after a case kills it."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import outcome
from fuzz.outcome import ANSWER, CHECKING, IN_VALUEFIT, PREPARING, REFUSED, Failure, Progress, Refusal

Case = Callable[[np.random.Generator, Path], str | None]  # mutates, calls valuefit, compares; RIGHT or None

MAX_CASE_CPU_SECONDS = 20  # of CPU time, which does not depend on how busy the machine is
MAX_CASE_SECONDS = 120  # of the clock, for a case that waits for ever
BATCH = 200  # cases per child
MACHINE_BYTES = 2 << 30  # memory of the machine as valuefit sees it; its limit for one array is half of that
DATA_BYTES = 3 << 30  # of a child beyond what it starts with; working memory next to an array at the limit


@dataclass(frozen=True)
class Target:
    """A format or an API entry. case: one case. cases: of a full run. prepare: called once before forking."""

    name: str
    case: Case
    cases: int = 5000
    prepare: Callable[[], None] = lambda: None


@dataclass
class Report:
    """Outcomes of the cases of one target, and the failures by case."""

    target: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, case: int, kind: str, detail: str) -> None:
        self.counts[kind] += 1
        if kind not in outcome.ALLOWED:
            self.failures.append((case, kind, detail))


def run(target: Target, *, seed: int, cases: range, jobs: int = 2, seconds: float = float("inf")) -> Report:
    """Run these cases of a target on `jobs` processes, for at most `seconds`."""
    report, started = Report(target.name), time.monotonic()
    target.prepare()
    gc.collect()
    gc.freeze()  # or the first collection in a child copies every page
    size = min(BATCH, max(1, -(-len(cases) // jobs)))
    batches = [cases[first : first + size] for first in range(0, len(cases), size)]
    children: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        while children or (batches and time.monotonic() - started < seconds):
            while batches and len(children) < jobs and time.monotonic() - started < seconds:
                child = _Child(target, seed, batches.pop(0))
                children[child.pipe] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            for key, _ in selector.select(timeout=1.0):
                child = children[key.fd]
                data = os.read(key.fd, 1 << 16)
                for line in child.lines(data):
                    report.add(*json.loads(line))
                if not data:
                    selector.unregister(key.fd)
                    del children[key.fd]
                    rest = child.finish(report)
                    if len(rest):
                        batches.insert(0, rest)
            for child in children.values():
                child.watch()
    gc.unfreeze()
    report.failures.sort()
    report.seconds = time.monotonic() - started
    return report


class _Child:
    """A forked process that runs a batch of cases and writes each outcome as a line of JSON to a pipe."""

    def __init__(self, target: Target, seed: int, cases: range) -> None:
        self.cases, self.progress = cases, Progress()
        self.progress.set(cases[0], PREPARING)
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.pipe, writing = os.pipe()
        self.seen, self.since, self.buffer, self.killed = -1, time.monotonic(), b"", False
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _run_in_child(target, seed, cases, self.progress, self.folder, writing)
        os.close(writing)

    def lines(self, data: bytes) -> list[bytes]:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return lines

    def watch(self) -> None:
        """Kill the child if its case has taken too long by the clock."""
        case, _ = self.progress.get()
        if case != self.seen:
            self.seen, self.since = case, time.monotonic()
        elif time.monotonic() - self.since > MAX_CASE_SECONDS and not self.killed:
            self.killed = True
            os.killpg(self.pid, signal.SIGKILL)

    def finish(self, report: Report) -> range:
        """Attribute the death of the child to its case; returns the cases that are left."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        trace = self.folder / "trace"
        where = _last_frame(trace.read_text(errors="replace")) if trace.exists() else ""
        shutil.rmtree(self.folder, ignore_errors=True)
        if status == 0:
            return range(0)
        case, phase = self.progress.get()
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if self.killed or number == signal.SIGPROF:
            report.add(case, "hang", f"no answer after {MAX_CASE_CPU_SECONDS} s{where}")
        elif phase == IN_VALUEFIT:
            name = signal.Signals(number).name if number else f"exit status {os.waitstatus_to_exitcode(status)}"
            report.add(case, "abort", f"{name}{where}")
        elif phase == CHECKING:  # the library itself aborted on a plain read, after valuefit had answered
            report.add(case, ANSWER, "")
        else:
            report.add(case, "harness", f"the child died before it called valuefit{where}")
        return range(case + 1, self.cases.stop)


def _run_in_child(target: Target, seed: int, cases: range, progress: Progress, folder: Path, writing: int) -> None:
    """Run the cases; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        with open(folder / "trace", "w") as trace:
            faulthandler.enable(trace)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            faulthandler.register(signal.SIGPROF, trace, chain=True)
            outcome.progress = progress
            _limit_memory()
            for case in cases:
                progress.set(case, PREPARING)
                signal.setitimer(signal.ITIMER_PROF, MAX_CASE_CPU_SECONDS)
                line = json.dumps([case, *run_case(target, seed, case, folder)])
                os.write(writing, line.encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


def run_case(target: Target, seed: int, case: int, folder: Path) -> tuple[str, str]:
    """Outcome and detail of one case, in this process."""
    rng = np.random.default_rng([seed, zlib.crc32(target.name.encode()), case])
    try:
        return target.case(rng, folder) or ANSWER, ""
    except Refusal as refusal:
        return REFUSED, str(refusal)
    except Failure as failure:
        return failure.kind, str(failure)
    except Exception as error:  # a fault of the harness itself is reported with its case
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "harness", f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"


def _limit_memory() -> None:
    """Let the machine look small to valuefit, and bound what this process may allocate."""
    pages = MACHINE_BYTES // os.sysconf("SC_PAGE_SIZE")
    original: Any = os.sysconf
    os.sysconf = lambda name: pages if name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES") else original(name)
    used = int(next(line for line in _status_lines() if line.startswith("VmData")).split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + DATA_BYTES, used + DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _status_lines() -> Iterator[str]:
    with open("/proc/self/status") as lines:
        yield from lines


def _last_frame(text: str) -> str:
    """The innermost frame of valuefit in a stack that faulthandler wrote, for the report."""
    frames = [line.split('"') for line in text.splitlines() if outcome.PACKAGE in line]
    return f" ({Path(frames[0][1]).name}{frames[0][2].replace(', line ', ':')})" if frames else ""
