"""Experiments of `reproduce`: TOML files and files of runs."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from fuzz.calls import compile_solvers
from fuzz.commands import run_command, toml_text
from fuzz.mutators import Rng, chance, mutate_bytes, mutate_text, pick, pick_entry
from fuzz.outcome import expect
from fuzz.runner import Target
from valuefit.paper import experiment, reproduce

EXPERIMENT = """
title = "Baird's star"
[source]
kind = "baird"
steps = 20
[problem]
discount = 0.9
trace = 0.0
[[panel]]
label = "one"
[[panel]]
label = "two"
problem = { discount = 0.5 }
passes = 4
[run]
methods = ["pdbg", "svrg"]
passes = 3
seeds = 1
[grid.printed]
step_theta = [0.1]
step_w = [0.1]
[quick.run]
passes = 2
[quick.source]
steps = 10
"""


class Inline:
    """In place of a pool of processes: runs each job when it is submitted."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def shutdown(self, **options: Any) -> None:
        pass

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # a future raises it where its result is asked for
            future.set_exception(error)
        return future


@cache
def stored_runs() -> dict[str, bytes]:
    """The run files of a complete run of EXPERIMENT, by name."""
    with tempfile.TemporaryDirectory() as name, in_this_process():
        path = Path(name, "experiment.toml")
        path.write_text(EXPERIMENT)
        experiment.run_experiment(reproduce.load_experiment(str(path)), Path(name))
        return {path.name: path.read_bytes() for path in Path(name, "runs").iterdir()}


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """Run experiments without a pool, limits of threads and figures, which take milliseconds to a second each."""
    with (
        mock.patch.object(experiment, "ProcessPoolExecutor", Inline),
        mock.patch.object(experiment, "limit_threads", return_value=contextlib.nullcontext()),
        mock.patch.object(reproduce, "draw", return_value=[]),
    ):
        yield


def prepare() -> None:
    importlib.import_module("matplotlib.pyplot")  # once, instead of in each child
    compile_solvers()
    stored_runs()


def reproduce_case(rng: Rng, folder: Path) -> str | None:
    path, out = folder / "experiment.toml", folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    (out / "runs").mkdir(parents=True)
    for name, data in stored_runs().items():
        (out / "runs" / name).write_bytes(data)
    text = EXPERIMENT.encode()
    if chance(rng, 0.4):
        files = sorted((out / "runs").iterdir())
        for file in (pick(rng, files) for _ in range(int(rng.integers(1, 4)))):
            data = file.read_bytes()
            cut = [b"", b"{}", b"[]", b"null", data[: len(data) // 2]]
            file.write_bytes(pick(rng, [*cut, mutate_bytes(rng, data), _mutated_run(rng, data)]))
    elif chance(rng, 0.5):
        text = mutate_text(rng, EXPERIMENT)
    else:
        table = tomllib.loads(EXPERIMENT)
        _mutate_toml(rng, table)
        text = toml_text(table).encode("utf-8", "replace")
    path.write_bytes(text)
    words = ["reproduce", str(path), "--out", str(out), "--jobs", "1", *(["--quick"] if chance(rng, 0.2) else [])]
    with in_this_process():
        done = run_command(words)
    expect("Written" in done.stdout, "nothing was written")
    return None


def _mutated_run(rng: Rng, data: bytes) -> bytes:
    try:
        run = json.loads(data)
    except ValueError:  # mutated before
        return b""
    if not isinstance(run, dict) or not run:
        return b"{"
    run[pick(rng, list(run))] = pick(rng, [None, "x", [], {}, -1, [None], ["x"], True, 1e300])
    return json.dumps(run).encode()


ODD_SETTINGS = [
    0, -1, 1.5, "x", True, [], {}, [1], ["x"], {"a": 1}, "", math.nan, math.inf, 1e300, -0.5, "svrg", "random-mdp",
    10**30,
]  # fmt: skip


def _mutate_toml(rng: Rng, table: Any) -> None:
    """Replace, remove, rename or add one entry, at any depth."""
    table, key = pick_entry(rng, table)
    draw = rng.random()
    if draw < 0.3:
        del table[key]
    elif draw < 0.4 and isinstance(table, dict):
        table[f"{key}x"] = table.pop(key)
    else:
        table[key] = pick(rng, ODD_SETTINGS)


TARGETS = [Target("reproduce", reproduce_case, prepare=prepare)]
