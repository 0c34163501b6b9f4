"""The command line: arguments of all commands, TOML files of `evaluate`, and a closed standard output."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tomllib
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from click.testing import CliRunner

import valuefit as vf
from fuzz.calls import compile_solvers
from fuzz.feature_calls import feature_spec
from fuzz.mutators import NUMBER_TEXTS, TEXTS, Rng, chance, mutate_text, number, pick
from fuzz.outcome import RIGHT, Failure, Refusal, ask, expect, fault_of_message
from fuzz.runner import Target
from fuzz.stored import POLICY
from valuefit.cli.main import main

REFUSED_EXIT, USAGE_EXIT = 1, 2
ANSWER_EXITS = (0, 3, 4)  # 3: the solver did not converge; 4: the verdict is "do not use", with --strict


def run_command(words: list[str]) -> Any:
    """Run the command line in this process; raises Refusal where it ends with a message."""
    done = ask(CliRunner().invoke, main, words, prog_name="valuefit")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise Failure("exception", f"{type(done.exception).__name__}: {ascii(str(done.exception))[:200]} escaped")
    if done.exit_code in ANSWER_EXITS:
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
    """Logs of observations and of numbered states, a policy and starts in the folder."""
    rng = np.random.default_rng(0)
    ends = [(e, t, int(t == 3)) for e in range(5) for t in range(4)]
    rows = [(*one, *np.round(rng.normal(size=3), 2)) for one in ends]
    _write_csv(folder / "log.csv", "episode,step,terminated,obs_0,obs_1,reward", rows)
    rows = [(*one, rng.integers(4), round(rng.normal(), 2), rng.integers(3), 0.33) for one in ends]
    _write_csv(folder / "states.csv", "episode,step,terminated,obs,reward,action,behaviour_prob", rows)
    np.save(folder / "policy.npy", POLICY)
    np.save(folder / "other.npy", POLICY[::-1])
    np.save(folder / "starts.npy", np.ones((2, 2)))


def _write_csv(path: Path, header: str, rows: list[tuple[Any, ...]]) -> None:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")


def _facts(text: str) -> Any:
    """The printed JSON."""
    try:
        return json.loads(text, parse_constant=lambda word: expect(False, f"the JSON contains {word}"))
    except ValueError as error:
        raise Failure("wrong", f"the output is not JSON: {text[:100]!a}") from error


def _estimate(text: str) -> float:
    return float(_facts(text)["policy_value"]["estimate"])


# ---- a file of options -----------------------------------------------------------------------------------------

EVALUATE_SETTINGS = ("discount", "trace", "ridge", "tol", "max_passes", "seed", "solver", "features",
                     "values", "interval", "level", "checks")  # as in `vf.evaluate`  # fmt: skip
OTHER_SETTINGS = ("starts", "policy", "cluster", "log", "columns", "strict", "report", "save", "json", "quiet", "force")


def _toml_value(rng: Rng) -> Any:
    """Any value that TOML can express."""
    odd: list[Any] = [
        True, False, 0, 1, -1, 0.5, 10**30, -(10**30), 1e300, math.inf, math.nan, "", "x", [], [0.9], [[1]], {},
        {"a": 1}, {"reward": "r"}, ["a", 1], "\x1b[31m", "a\nb", "x" * 3000, "cr1", "all", "episode",
        pick(rng, TEXTS[:9]), feature_spec(rng),
    ]  # fmt: skip
    return pick(rng, odd) if chance(rng, 0.8) else number(rng)


def config_case(rng: Rng, folder: Path) -> str | None:
    _input_files(folder)
    settings: dict[str, Any] = {"log": "log.csv", "discount": 0.9, "features": "identity", "max_passes": 50}
    for _ in range(int(rng.integers(0, 3))):
        settings[pick(rng, [*EVALUATE_SETTINGS, *OTHER_SETTINGS, "max-passes", "unknown"])] = _toml_value(rng)
    text = toml_text(settings)
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
    shown = {"log", "json", "quiet", "strict"}
    if plain.pop("log", None) != "log.csv" or plain.keys() - {*EVALUATE_SETTINGS} - shown:
        return None
    options = {name: value for name, value in plain.items() if name not in shown}
    same = ask(lambda: vf.evaluate(folder / "log.csv", **options)).policy_value.estimate
    expect(math.isclose(same, estimate, rel_tol=1e-9, abs_tol=1e-12), f"{estimate}, but evaluate gives {same}")
    return RIGHT


def toml_text(table: dict[str, Any]) -> str:
    try:
        return tomli_w.dumps(table)
    except (TypeError, ValueError, UnicodeError):
        return tomli_w.dumps({"discount": 0.9, "seed": 10**30})


# ---- arguments -------------------------------------------------------------------------------------------------

SMALL = ["--discount", "0.9", "--json", "--max-passes", "50"]
COMMANDS: dict[str, list[str]] = {
    "evaluate": ["log.csv", "--features", "identity", *SMALL],
    "compare": ["states.csv", "--features", "one-hot", "--policy", "policy.npy", *SMALL],
    "convert": ["log.csv", "out.npz"],
    "completion": ["bash"],
    "reproduce": ["nothing", "--jobs", "x"],  # only refusals, also of demo: a run takes seconds
    "demo": ["--quick", "--tol", "x"],
    "solvers": [], "nothing": [], "--version": [],
}  # fmt: skip
OFTEN = ["evaluate"] * 5 + ["compare"] * 4 + ["convert"] * 3
SWITCHES = ["--quiet", "--force", "--json", "--no-json", "--strict", "-h", "--", "-x", "--nothing", "--markdown", "zsh"]
ARGUMENTS = ["out", "out.parquet", "out.npz", "out.csv", ".", "/", "log.csv", "states.csv", "minari:x", "http://x",
             "out" + "z" * 250]  # fmt: skip
NUMBERS = ("discount", "trace", "ridge", "tol", "max-passes", "seed", "level")
VALUES: dict[str, list[str]] = {
    "solver": ["lstd", "krylov", "saga", "x"],
    "values": ["state", "state-action", "x"],
    "interval": ["cr3", "cr1", "x"],
    "cluster": ["episode", "reward", "nothing"],
    "checks": ["standard", "all", "x"],
    "starts": ["starts.npy", "log.csv", "x.npy", "."],
    "policy": ["policy.npy", "other.npy", "logged", "log.csv", "json:loads", "x:y", "os.path:join"],
    "columns": ["reward=obs_0", "obs=obs_0,obs_1", "x=y", "=", "reward=", "cluster=episode"],
    "report": ["out.html", "x/out.html", "out.txt", "out" + "x" * 250 + ".html"],
    "save": ["out2.npz", "log.csv", "out" + "y" * 250],
    "config": ["log.csv", "x.toml"],
    "write-config": ["out.toml", "log.csv"],
}


def cli_case(rng: Rng, folder: Path) -> str | None:
    """Arguments of all commands."""
    _input_files(folder)
    command = pick(rng, [*OFTEN, *COMMANDS])
    words = COMMANDS[command]
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
    if not done.stdout.startswith("{"):
        return None
    if command == "evaluate":
        expect(math.isfinite(_estimate(done.stdout)), "the policy value is not finite")
    elif command == "compare":
        _check_comparison(_facts(done.stdout))
    return RIGHT


def _check_comparison(facts: Any) -> None:
    """The differences are those of the printed values."""
    values = {one["name"]: one["estimate"] for one in facts["values"]}
    expect(len(facts["differences"]) == len(values) * (len(values) - 1) // 2, "pairs are missing")
    for one in facts["differences"]:
        first, second = one["names"]
        expect(one["estimate"] == values[first] - values[second], f"the difference is {one['estimate']}")


def _typed(word: str) -> str:
    """A word as a shell can pass it; a long one only as features, since messages may repeat names of files."""
    word = word.replace("\x00", "").replace("\ud800", "\udcff")
    return word if "=" in word else word[:300]


def _mutate_words(rng: Rng, command: str, words: list[str]) -> list[str]:
    """Replace, remove or add an argument."""
    draw, at = rng.random(), int(rng.integers(len(words) + 1))
    if draw < 0.5 and command in ("evaluate", "compare", "convert"):
        name = pick(rng, [*NUMBERS, *VALUES, "features"]) if command != "convert" else "columns"
        numbers = [*NUMBER_TEXTS[:25], repr(number(rng))]
        texts = numbers if name in NUMBERS else VALUES.get(name) or [feature_spec(rng)]
        return [*words, f"--{name}", pick(rng, texts) if chance(rng, 0.9) else pick(rng, TEXTS)]
    if draw < 0.6:
        return [*words, pick(rng, SWITCHES)]
    if draw < 0.8 and words:
        return [*words[:at], *words[at + 1 :]]
    return [*words[:at], pick(rng, TEXTS) if chance(rng, 0.5) else pick(rng, ARGUMENTS), *words[at + 1 :]]


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
        except Exception:  # as Python itself would print it
            os.write(2, traceback.format_exc().encode(errors="replace"))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, errors="replace") as stream:
        shown = stream.read()
    os.waitpid(child, 0)
    if "Traceback" in shown:
        raise Failure("exception", f"standard output closed: {shown.strip().splitlines()[-1][:200]}")


TARGETS = [
    Target("config", config_case, prepare=compile_solvers),
    Target("cli", cli_case, prepare=compile_solvers),
]
