"""Faults while files are written: kill -9 at random moments, a full disk, a read-only folder, many writers of one path.

`python -m fuzz --only faults --cases 500 --seed 1`. After every fault the path must hold the old contents or the new
ones.
"""

from __future__ import annotations

import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import click
import numpy as np

import valuefit as vf
from valuefit import atomic
from valuefit.cli.main import main as command_line
from valuefit.paper.definition import load_experiment
from valuefit.paper.experiment import run_experiment
from valuefit.paper.run_files import are_numbers, read_run

STEPS = 400  # of the logs that are written
MAX_WRITER_SECONDS = 0.25  # until a writer of files is killed; a write takes a few milliseconds
MAX_REPRODUCE_SECONDS = 1.0  # until `reproduce` is killed
MAX_ORPHAN_SECONDS = 20.0  # until the workers of a killed process must have ended
NOBODY = 65534  # the user without rights
RUN = {"status": lambda status: isinstance(status, str), "passes": are_numbers, "gap": are_numbers}
EXPERIMENT = """
title = "small"
[source]
kind = "random-mdp"
states = 10
features = 5
steps = 500
[[panel]]
label = "only"
[run]
methods = ["saga", "pdbg"]
passes = 200
seeds = 2
[grid.small]
step_theta = [1.0, 10.0, 100.0]
step_w = [1.0, 0.1]
"""


def log_of(number: int) -> vf.Transitions:
    """A log whose observations and rewards all are `number`, so that a mixture of two logs is recognised."""
    values, last = np.full(STEPS, float(number)), np.arange(STEPS) == STEPS - 1
    return vf.Transitions.from_arrays(values, values, terminated=last)


def number_of(log: vf.Transitions) -> int:
    """The number of a log of `log_of`."""
    numbers = {*log.reward.tolist(), *np.ravel(log.observations).tolist()}
    if len(numbers) != 1 or len(log) != STEPS:
        raise ValueError(f"A mixture of the logs {sorted(numbers)[:5]} was loaded.")
    return int(numbers.pop())


@dataclass(frozen=True)
class Writer:
    """`write(path, number)` writes the contents of this number to `path`, and `read(path)` returns the number."""

    name: str
    write: Callable[[Path, int], Any]
    read: Callable[[Path], int]


def writers(folder: Path) -> list[Writer]:
    """Every kind of file and folder that valuefit writes; `folder` holds what they need."""
    result = vf.solve(vf.Problem(vf.datasets.random_mdp(8, 2, 3).log(60), discount=0.9), "lstd")
    evaluation = vf.evaluate(vf.datasets.random_mdp(8, 2, 3).log(60))
    first = _seeded(evaluation, 0).report(folder / "first.html").read_text()
    second = _seeded(evaluation, 1).report(folder / "second.html").read_text()
    sources = [vf.save(log_of(number), folder / f"source-{number}.npz") for number in (0, 1)]

    def save_log(path: Path, number: int) -> None:
        vf.save(log_of(number), path, force=True)

    def read_log(path: Path) -> int:
        return number_of(vf.load(path))

    def convert(path: Path, number: int) -> None:
        try:
            command_line(["convert", str(sources[number % 2]), str(path), "--force"], standalone_mode=False)
        except click.ClickException as error:
            raise OSError(error.message) from error

    def read_page(path: Path) -> int:
        return [first, second].index(path.read_text())

    return [
        Writer("log", save_log, read_log),
        Writer("log.npz", save_log, read_log),
        Writer("log.parquet", save_log, read_log),
        Writer(
            "result.npz", lambda path, n: replace(result, seed=n).save(path), lambda path: vf.Result.load(path).seed
        ),
        Writer(
            "evaluation.npz",
            lambda path, n: _seeded(evaluation, n).save(path, force=True),
            lambda path: vf.Evaluation.load(path).seed,
        ),
        Writer("report.html", lambda path, n: _seeded(evaluation, n % 2).report(path, force=True), read_page),
        Writer("converted", convert, read_log),
        Writer("converted.parquet", convert, read_log),
    ]


def _seeded(evaluation: vf.Evaluation, seed: int) -> vf.Evaluation:
    """The evaluation with another seed, by which its files are recognised."""
    return replace(evaluation, fit=replace(evaluation.fit, seed=seed))


class Faults:
    """Injects the faults and counts what it finds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        (folder / "sources").mkdir()
        self.writers = writers(folder / "sources")
        self.curves = run_experiment(self.experiment(), folder / "reference", jobs=1)

    def expect(self, kind: str, what: str, correct: bool) -> None:
        """Count a case, and record a failure with its description."""
        self.counts[kind] += 1
        if not correct:
            self.counts["failures"] += 1
            self.failures.append(f"{kind}: {what}")

    def child(self, work: Callable[[], Any]) -> int:
        """Start `work` in a process with a session of its own; an exception of it ends up in the file "error"."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        os.setsid()
        status = 1
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                work()
            status = 0
        except BaseException:  # whatever it raises, also on exit, is kept for `error`
            (self.folder / "error").write_text(traceback.format_exc())
        finally:
            os._exit(status)

    def error(self) -> str:
        """What the last child raised, and forget it."""
        path = self.folder / "error"
        text = path.read_text().strip().splitlines()[-1] if path.exists() else ""
        path.unlink(missing_ok=True)
        return text

    def kill_writer(self, writer: Writer) -> None:
        """Kill a process that writes one number after another; the number written last, or the next, must be there."""
        path = self.place(writer)
        writer.write(path, 0)
        finished = mmap.mmap(-1, 8)  # shared with the child: the number that it has written

        slow = self.rng.random() < 0.5  # most kills then fall before the old folder is deleted

        def write() -> None:
            if slow:
                atomic._exchange = followed_by_pause(atomic._exchange)
            for number in count(1):
                writer.write(path, number)
                finished[:] = number.to_bytes(8, "little")

        pid = self.child(write)
        time.sleep(self.rng.uniform(0, MAX_WRITER_SECONDS))
        os.kill(pid, signal.SIGKILL)
        killed = os.waitpid(pid, 0)[1] == signal.SIGKILL
        last = int.from_bytes(finished[:], "little")
        try:
            found: Any = writer.read(path)
        except Exception as error:  # whatever a half-written file raises is the failure
            found = repr(error)
        allowed = (last % 2, (last + 1) % 2) if writer.name.startswith(("report", "converted")) else (last, last + 1)
        self.expect(
            f"kills of {writer.name}", f"{found} instead of {allowed}; {self.error()}", killed and found in allowed
        )
        self.expect("writes after a kill", writer.name, self.works(lambda: writer.write(path, 5)))

    def kill_reproduce(self) -> None:
        """Kill `reproduce`: runs on disk must be whole, its workers must end, and it resumes to the same curves."""
        folder = self.folder / f"reproduce-{self.counts['finished experiments']}"
        pid = self.child(lambda: run_experiment(self.experiment(), folder, jobs=2))
        time.sleep(self.rng.uniform(0.02, MAX_REPRODUCE_SECONDS))
        os.kill(pid, signal.SIGKILL)
        finished = os.waitpid(pid, 0)[1] != signal.SIGKILL
        if finished:
            same = run_experiment(self.experiment(), folder, jobs=1) == self.curves
            self.expect("finished experiments", f"other curves after kills; {self.error()}", same)
            return
        self.counts["kills of reproduce"] += 1
        deadline = time.monotonic() + MAX_ORPHAN_SECONDS
        while in_session(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.expect("kills whose workers end", f"{len(in_session(pid))} workers live on", not in_session(pid))
        for file in (folder / "runs").glob("*.json"):
            self.expect("files of runs after a kill", self.error(), self.works(lambda file=file: read_run(file, RUN)))

    def experiment(self) -> Any:
        path = self.folder / "small.toml"
        path.write_text(EXPERIMENT)
        return load_experiment(str(path))

    def fill_disk(self, writer: Writer) -> None:
        """Limit the size of files: the write must fail in a sentence, leave the old contents and nothing else."""
        path = self.place(writer)
        writer.write(path, 0)
        size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
        before = sorted(path.parent.iterdir())
        limit = self.rng.randrange(size // (10 if path.is_dir() else 2))

        def write() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                writer.write(path, 1)
            except OSError as error:
                os._exit(3 if f"{path} cannot be written: " in str(error) else 4)

        status = os.waitstatus_to_exitcode(os.waitpid(self.child(write), 0)[1])
        unchanged = sorted(path.parent.iterdir()) == before and self.works(lambda: writer.read(path))
        correct = unchanged and status == 3 and writer.read(path) == 0
        self.expect("full disks", f"{writer.name} at {limit} of {size} bytes: {status} {self.error()}", correct)

    def read_only(self, writer: Writer) -> None:
        """Write as a user without rights: refused, and nothing changes."""
        path = self.place(writer)
        writer.write(path, 0)
        path.parent.chmod(0o555)

        def write() -> None:
            if os.getuid() == 0:
                os.setuid(NOBODY)
            try:
                writer.write(path, 1)
            except OSError as error:
                os._exit(3 if f"{path} cannot be written: Permission denied" in str(error) else 4)

        status = os.waitstatus_to_exitcode(os.waitpid(self.child(write), 0)[1])
        path.parent.chmod(0o755)
        correct = status == 3 and writer.read(path) == 0 and list(path.parent.iterdir()) == [path]
        self.expect("read-only folders", f"{writer.name}: {status} {self.error()}", correct)

    def write_together(self, writer: Writer, seconds: float) -> None:
        """Eight threads and two processes write one path while another process reads it."""
        path = self.place(writer)
        writer.write(path, 0)
        end = time.monotonic() + seconds

        def write(number: int) -> None:
            while time.monotonic() < end:
                writer.write(path, number)

        def write_in_threads() -> None:
            raised: list[BaseException] = []

            def guarded(number: int) -> None:
                try:
                    write(number)
                except BaseException as error:  # a thread would lose it
                    raised.append(error)

            threads = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if raised:
                raise raised[0]

        children = [self.child(write_in_threads), self.child(lambda: write(8)), self.child(lambda: write(9))]
        while True:  # at least once, however busy the machine
            self.expect("reads during writes", f"{writer.name}: {self.error()}", self.works(lambda: writer.read(path)))
            if time.monotonic() >= end:
                break
        statuses = [os.waitpid(pid, 0)[1] for pid in children]
        left = [entry.name for entry in path.parent.iterdir() if entry != path]
        self.expect(
            "paths with ten writers", f"{writer.name}: {statuses} {self.error()} {left}", not any(statuses) and not left
        )

    def place(self, writer: Writer) -> Path:
        """A path in a new folder that everybody may enter."""
        folder = self.folder / f"place-{self.counts.total()}-{self.rng.randrange(10**9)}"
        folder.mkdir()
        return folder / writer.name

    def works(self, action: Callable[[], Any]) -> bool:
        """Whether the action raises nothing; what it raises is kept for `error`."""
        try:
            action()
        except Exception:  # any one is a failure, which `expect` counts
            (self.folder / "error").write_text(traceback.format_exc())
            return False
        return True


def followed_by_pause(function: Callable[..., None]) -> Callable[..., None]:
    """The function, with 50 ms in which the process may be killed before it goes on."""

    def slow(*arguments: Any) -> None:
        function(*arguments)
        time.sleep(0.05)

    return slow


def in_session(leader: int) -> list[int]:
    """Processes of the session that this process began, which have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def run(kills: int, seed: int, seconds: float) -> tuple[Counter[str], list[str]]:
    """Inject faults, `kills` of them kill -9, for at most about this many seconds: counts of cases, and failures."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        folder = Path(name)
        folder.chmod(0o755)
        faults = Faults(folder, seed)
        for writer in faults.writers:
            faults.read_only(writer)
            for _ in range(max(1, kills // 60)):
                faults.fill_disk(writer)
            faults.write_together(writer, min(1.0, seconds / 60))
        for number in range(kills):
            if time.monotonic() > end:
                break
            if number % 8 == 7:
                faults.kill_reproduce()
            else:
                faults.kill_writer(faults.rng.choice(faults.writers))
    return faults.counts, faults.failures
