"""The command line: arguments, TOML files of `evaluate` and of `reproduce`, and a closed standard output."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import tomllib
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tomli_w
from click.testing import CliRunner

import valuefit as vf
from fuzz.calls import compile_solvers, feature_spec
from fuzz.mutators import NUMBER_TEXTS, TEXTS, Rng, chance, mutate_bytes, mutate_text, number, pick, pick_entry
from fuzz.outcome import RIGHT, Failure, Refusal, ask, expect, fault_of_message
from fuzz.runner import Target
from fuzz.stored import POLICY
from valuefit.cli.main import main
from valuefit.paper import experiment, reproduce

REFUSED_EXIT, USAGE_EXIT, NOT_CONVERGED_EXIT = 1, 2, 3


def run_command(words: list[str]) -> Any:
    """Run the command line in this process; raises Refusal where it ends with a message."""
    done = ask(CliRunner().invoke, main, words, prog_name="valuefit")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Failure("exception", f"{type(done.exception).__name__}: {ascii(str(done.exception))[:200]} escaped")
    if done.exit_code in (0, NOT_CONVERGED_EXIT):
        return done
    _, _, message = done.stderr.rstrip("\n").rpartition("Error: ")
    if done.exit_code not in (REFUSED_EXIT, USAGE_EXIT):
        raise Failure("exception", f"exit code {done.exit_code}: {ascii(message)[:200]}")
    if "MemoryError" in message or "Unable to allocate" in message:
        raise Failure("memory", message)
    if why := fault_of_message(message):
        raise Failure("unclear", f"{why}: {ascii(message)[:200]}")
    raise Refusal(message)


def _input_files(folder: Path) -> None:
    """A log, a policy and starts in the folder."""
    rng = np.random.default_rng(0)
    rows = [(e, t, *np.round(rng.normal(size=3), 2), int(t == 3)) for e in range(5) for t in range(4)]
    lines = ["episode,step,obs_0,obs_1,reward,terminated", *(",".join(map(str, row)) for row in rows)]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    np.save(folder / "policy.npy", POLICY)
    np.save(folder / "starts.npy", np.ones((2, 2)))


def _estimate(text: str) -> float:
    try:
        facts = json.loads(text, parse_constant=lambda word: expect(False, f"the JSON contains {word}"))
    except ValueError as error:
        raise Failure("wrong", f"the output is not JSON: {text[:100]!a}") from error
    return float(facts["policy_value"]["estimate"])


# ---- evaluate ------------------------------------------------------------------------------------------------

SETTINGS = ("discount", "trace", "ridge", "tol", "max_passes", "seed", "solver", "features", "values", "starts",
"policy", "log", "columns",
            "report", "save", "json", "quiet", "force")  # fmt: skip


def _toml_value(rng: Rng) -> Any:
    """Any value that TOML can express."""
    odd = [True, False, 0, 1, -1, 0.5, 10**30, -(10**30), 1e300, math.inf, math.nan, "", "x", [], [0.9], [[1]], {},
        {"a": 1}, {"reward": "r"},
           ["a", 1], "\x1b[31m", "a\nb", "x" * 3000, pick(rng, TEXTS[:9]), feature_spec(rng)]  # fmt: skip
    return pick(rng, odd) if chance(rng, 0.8) else number(rng)


def config_case(rng: Rng, folder: Path) -> str | None:
    _input_files(folder)
    settings: dict[str, Any] = {"log": "log.csv", "discount": 0.9, "features": "identity", "max_passes": 50}
    for _ in range(int(rng.integers(0, 3))):
        settings[pick(rng, [*SETTINGS, "max-passes", "unknown"])] = _toml_value(rng)
    text = _toml_text(settings)
    if chance(rng, 0.02):
        text = "discount = 0." + "9" * 400 + "\n" + text if chance(rng, 0.5) else f"seed = {'7' * 5000}\n"
    path = folder / "run.toml"
    path.write_bytes(mutate_text(rng, text) if chance(rng, 0.4) else text.encode("utf-8", "replace"))
    done = run_command(["evaluate", "--config", str(path), "--json", "--no-quiet"])
    estimate = _estimate(done.stdout)
    expect(math.isfinite(estimate), f"the policy value is {estimate}")
    try:
        plain = {name.replace("-", "_"): value for name, value in tomllib.loads(path.read_text()).items()}
    except ValueError:
        return None
    if plain.get("log") != "log.csv" or plain.keys() - set(SETTINGS[:9]) - {"log", "json", "quiet"}:
        return None
    options = {
        name: value for name, value in plain.items() if name in SETTINGS[:9] and name not in ("starts", "policy")
    }
    if not set(plain) & {"starts", "policy"}:
        same = ask(lambda: vf.evaluate(folder / "log.csv", **options)).policy_value.estimate
        expect(math.isclose(same, estimate, rel_tol=1e-9, abs_tol=1e-12), f"{estimate}, but evaluate gives {same}")
        return RIGHT
    return None


def _toml_text(table: dict[str, Any]) -> str:
    try:
        return tomli_w.dumps(table)
    except (TypeError, ValueError, UnicodeError):
        return tomli_w.dumps({"discount": 0.9, "seed": 10**30})


def cli_case(rng: Rng, folder: Path) -> str | None:
    """Arguments of all commands."""
    _input_files(folder)
    command = pick(
        rng, ["evaluate"] * 6 + ["convert"] * 3 + ["solvers", "demo", "completion", "reproduce", "nothing", "--version"]
    )
    words = {"evaluate": ["log.csv", "--features", "identity", "--discount", "0.9", "--json", "--max-passes", "50"],
             "convert": ["log.csv", "out.npz"], "completion": ["bash"]}.get(command, [])  # fmt: skip
    if command in ("demo", "reproduce"):  # only refusals: a run takes seconds
        words = ["nothing", "--jobs", "x"] if command == "reproduce" else ["--quick", "--tol", "x"]
    for _ in range(int(rng.integers(0, 4))):
        words = _mutate_words(rng, command, words)
    if command == "demo" and "x" not in words:
        return None
    for path in folder.glob("out*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    words = [command, *(_typed(word) for word in words)]
    if chance(rng, 0.03):
        return _closed_output(words)
    done = run_command(words)
    if command == "convert" and (folder / "out.npz").exists() and "--columns" not in words:
        again = vf.load(folder / "out.npz")
        expect(np.isfinite(again.reward).all(), "the converted log is not finite")
    if command == "evaluate" and done.stdout.startswith("{"):
        expect(math.isfinite(_estimate(done.stdout)), "the policy value is not finite")
        return RIGHT
    return None


def _typed(word: str) -> str:
    """A word as a shell can pass it; a long one only as features, since messages may repeat names of files."""
    word = word.replace("\x00", "").replace("\ud800", "\udcff")
    return word if "=" in word else word[:300]


def _mutate_words(rng: Rng, command: str, words: list[str]) -> list[str]:
    """Replace, remove or add an argument."""
    draw, at = rng.random(), int(rng.integers(len(words) + 1))
    options = {
        "discount": None, "trace": None, "ridge": None, "tol": None, "max-passes": None, "seed": None,
        "solver": [*vf.solvers.names(), "x"],
        "features": [feature_spec(rng)], "values": ["state", "state-action", "x"], "starts": ["starts.npy", "log.csv",
        "x.npy", "."],
        "policy": ["policy.npy", "log.csv", "json:loads", "x:y", "os.path:join"], "columns": ["reward=obs_0",
        "obs=obs_0,obs_1", "x=y", "=", "reward="],
        "report": ["out.html", "x/out.html", "out.txt", "out" + "x" * 250 + ".html"], "save": ["out2.npz", "log.csv",
        "out" + "y" * 250], "config": ["log.csv", "x.toml"],
        "write-config": ["out.toml", "log.csv"],
    }  # fmt: skip
    if draw < 0.5 and command in ("evaluate", "convert"):
        name = pick(rng, list(options)) if command == "evaluate" else "columns"
        texts = options[name] or [*NUMBER_TEXTS[:25], repr(number(rng))]
        return [*words, f"--{name}", pick(rng, texts) if chance(rng, 0.9) else pick(rng, TEXTS)]
    if draw < 0.6:
        return [
            *words,
            pick(
                rng, ["--quiet", "--force", "--json", "--no-json", "-h", "--", "-x", "--nothing", "--markdown", "zsh"]
            ),
        ]
    if draw < 0.8 and words:
        return [*words[:at], *words[at + 1 :]]
    text = (
        pick(rng, TEXTS)
        if chance(rng, 0.5)
        else pick(
            rng,
            [
                "out",
                "out.parquet",
                "out.npz",
                "out.csv",
                ".",
                "/",
                "log.csv",
                "minari:x",
                "http://x",
                "out" + "z" * 250,
            ],
        )
    )
    return [*words[:at], text, *words[at + 1 :]]


def _closed_output(words: list[str]) -> None:
    """Run with standard output closed in a child: no traceback may appear."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writing, 2)
            os.close(1)
            sys.stdout = None  # as Python starts where the shell has closed it
            main(words, prog_name="valuefit")
        except Exception:
            os.write(2, traceback.format_exc().encode(errors="replace"))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, errors="replace") as stream:
        shown = stream.read()
    os.waitpid(child, 0)
    if "Traceback" in shown:
        raise Failure("exception", f"standard output closed: {shown.strip().splitlines()[-1][:200]}")


# ---- reproduce -----------------------------------------------------------------------------------------------

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
passes = 30
[run]
methods = ["pdbg", "svrg"]
passes = 24
seeds = 1
[grid.printed]
step_theta = [0.1]
step_w = [0.1]
[quick.run]
passes = 24
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
        except BaseException as error:
            future.set_exception(error)
        return future


@cache
def stored_runs() -> dict[str, bytes]:
    """The run files of a complete run of EXPERIMENT, by name."""
    Path("experiment.toml").write_text(EXPERIMENT)
    with in_this_process():
        experiment.run_experiment(reproduce.load_experiment("experiment.toml"), Path("runs-of-fuzz"))
    found = {path.name: path.read_bytes() for path in Path("runs-of-fuzz", "runs").iterdir()}
    shutil.rmtree("runs-of-fuzz")
    return found


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """Run experiments without a pool of processes and without figures, which take a second each."""
    with (
        mock.patch.object(experiment, "ProcessPoolExecutor", Inline),
        mock.patch.object(reproduce, "draw", return_value=[]),
    ):
        yield


def prepare_reproduce() -> None:
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
        text = _toml_text(table).encode("utf-8", "replace")
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


TARGETS = [
    Target("config", config_case),
    Target("reproduce", reproduce_case, prepare=prepare_reproduce),
    Target("cli", cli_case),
]
