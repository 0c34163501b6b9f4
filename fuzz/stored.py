"""Files that valuefit reads besides logs: results, evaluations, policies and starts."""

from __future__ import annotations

import io
import json
import math
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import valuefit as vf
from fuzz.mutators import (
    NUMBER_TEXTS,
    TEXTS,
    Rng,
    chance,
    mutate_array,
    mutate_bytes,
    mutate_npy,
    mutate_npz,
    mutate_text,
    npy_bytes,
    npz_bytes,
    number,
    pick,
    pick_entry,
)
from fuzz.outcome import RIGHT, ask, expect
from fuzz.runner import Target
from valuefit.cli.commands import read_starts
from valuefit.policies.policy import find_policy


def small_log(seed: int = 0, *, labels: bool = False, n: int = 20) -> vf.Transitions:
    """n steps in episodes of four: two-dimensional observations, or four states and three actions."""
    rng = np.random.default_rng(seed)
    return vf.Transitions.from_arrays(
        rng.integers(0, 4, n) if labels else np.round(rng.normal(size=(n, 2)), 3),
        np.round(rng.normal(size=n), 3),
        terminated=np.arange(n) % 4 == 3,
        action=rng.integers(0, 3, n),
        behaviour_prob=np.full(n, 1 / 3),
    )


POLICY = np.array([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])


def _saved(thing: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return Path(thing.save(Path(folder, "saved.npz"))).read_bytes()


@cache
def results() -> list[bytes]:
    """Result files of a solve that converged and of one that did not."""
    problem = vf.Problem(small_log(), discount=0.9)
    return [_saved(vf.solve(problem, "lstd")), _saved(vf.solve(problem, "pdbg", max_passes=5))]


@cache
def evaluations() -> list[bytes]:
    """Evaluation files with each kind of features and with a policy."""
    options: list[dict[str, Any]] = [
        {"features": name} for name in ("kernel:landmarks=4", "tiles", "fourier", "rbf", "polynomial", "identity")
    ]
    made = [_saved(vf.evaluate(small_log(), discount=0.9, **one)) for one in options]
    table = {"policy": POLICY, "discount": 0.9, "features": "one-hot"}
    made += [
        _saved(vf.evaluate(small_log(labels=True), values=values, **table)) for values in ("state", "state-action")
    ]
    return made


# ---- results and evaluations -----------------------------------------------------------------------------


def mutate_stored(rng: Rng, data: bytes) -> bytes:
    """Change the JSON facts, an array or the bytes of a file that `save` wrote."""
    if chance(rng, 0.5):
        return mutate_npz(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    text = str(np.load(io.BytesIO(entries["facts.npy"])))
    if chance(rng, 0.2):
        text = mutate_text(rng, text.replace(", ", ",\n")).decode("utf-8", "replace").replace("\n", " ")
    else:
        facts = json.loads(text)
        _mutate_facts(rng, facts)
        text = json.dumps(facts)
    entries["facts.npy"] = npy_bytes(np.array(text))
    if chance(rng, 0.02):
        entries["theta.npy"] = npy_bytes(np.zeros(4_000_000))  # compresses to a few kilobytes
    return npz_bytes(rng, entries)


def _mutate_facts(rng: Rng, facts: Any) -> None:
    """Replace, remove or add one entry, at any depth."""
    facts, key = pick_entry(rng, facts)
    draw = rng.random()
    if draw < 0.15:
        del facts[key]
    elif draw < 0.25 and isinstance(facts, dict):
        facts["extra"] = 1
    else:
        odd = [
            None,
            True,
            "x",
            "",
            [],
            {},
            [1, 2],
            {"a": 1},
            -1,
            0,
            123,
            "converged",
            "diverged",
            10**400,
            pick(rng, TEXTS[:10]),
            [[]],
        ]
        value = pick(rng, odd) if chance(rng, 0.7) else number(rng)
        facts[key] = str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _write(rng: Rng, folder: Path, files: list[bytes]) -> Path:
    path = folder / "stored.npz"
    data = pick(rng, files)
    for _ in range(int(rng.integers(1, 3))):
        try:
            data = mutate_stored(rng, data)
        except Exception:  # mutated twice: no archive any more
            data = mutate_bytes(rng, data)
    path.write_bytes(data)
    return path


def result_case(rng: Rng, folder: Path) -> str | None:
    path = _write(rng, folder, results())
    result = ask(vf.Result.load, path)
    ask(repr, result)
    stored = _arrays(path)
    expect(all(np.array_equal(getattr(result, name), stored[name]) for name in ("theta", "w")), "other weights")
    for weights in (result.theta, result.w):
        array = np.asarray(weights)
        expect(array.dtype.kind == "f" and np.isfinite(array).all(), f"weights of dtype {array.dtype}, or not finite")
    (folder / "again.npz").unlink(missing_ok=True)
    again = ask(vf.Result.load, ask(result.save, folder / "again.npz"))
    expect(ask(repr, again) == ask(repr, result), "saved and loaded again, the result differs")
    if len(result.theta) == 2:
        ask(vf.solve, vf.Problem(small_log(), discount=0.9), "lstd", init=result)
    return RIGHT


def evaluation_case(rng: Rng, folder: Path) -> str | None:
    path = _write(rng, folder, evaluations())
    evaluation = ask(vf.Evaluation.load, path)
    stored = _arrays(path)
    for name, array in stored.items():
        if name.startswith("log."):
            found = getattr(evaluation.log, name.removeprefix("log."))
            expect(np.array_equal(found, array), f"the column {name} of the log differs")
    expect(np.array_equal(evaluation.result.theta, stored["result.theta"]), "other weights")
    ask(repr, evaluation)
    ask(evaluation.summary)
    ask(lambda: json.dumps(evaluation.to_dict(), allow_nan=False))
    ask(evaluation.policy_value.interval_at, 0.9)
    log = evaluation.log
    starts = log.observations[log.now[np.unique(log.episode, return_index=True)[1]]]
    mean = float(np.mean(ask(evaluation.value, starts)))
    estimate = evaluation.policy_value.estimate
    expect(
        abs(mean - estimate) <= 1e-6 * max(1.0, abs(mean)), f"the policy value is {estimate}, the weights give {mean}"
    )
    return RIGHT


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files if name != "facts"}


# ---- files of numbers --------------------------------------------------------------------------------------


def _numbers_file(rng: Rng, folder: Path, array: Any, name: str) -> Path:
    """A .npy, .csv or .txt file of this array, mutated."""
    suffix = pick(rng, [".npy", ".npy", ".csv", ".txt"])
    path = folder / f"{name}{suffix}"
    if suffix == ".npy":
        path.write_bytes(mutate_npy(rng, npy_bytes(array)) if chance(rng, 0.9) else npy_bytes(array))
        return path
    separator = "," if suffix == ".csv" else " "
    text = "\n".join(separator.join(map(repr, np.atleast_1d(row).tolist())) for row in array)
    if chance(rng, 0.2):
        text = f"{pick(rng, NUMBER_TEXTS)}{separator}b\n{text}"
    path.write_bytes(mutate_text(rng, text) if chance(rng, 0.8) else text.encode())
    return path


def _plain_numbers(path: Path) -> Any:
    """The numbers of a file; None where NumPy cannot read it."""
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        lines = path.read_text().splitlines()
        rows = [[float(word) for word in line.split("," if path.suffix == ".csv" else None)] for line in lines if line]
        return np.array(rows)
    except Exception:  # of NumPy, on a damaged file
        return None


def policy_case(rng: Rng, folder: Path) -> str | None:
    """A file, an array or an object as a policy, used in `evaluate`."""
    log = small_log(labels=True)
    by_step = chance(rng, 0.3)
    array = np.round(rng.uniform(0.1, 0.9, len(log)), 3) if by_step else POLICY
    given: Any = _numbers_file(rng, folder, array, "policy")
    if chance(rng, 0.3):
        others = [mutate_array(rng, array), array.tolist(), lambda x: POLICY[x], lambda x, a: POLICY[x, a], lambda: 0,
            lambda x: None,
                  lambda x: "x", lambda x: np.full((len(x), 3), np.nan), lambda x: POLICY[x][:1],
                  lambda x: mutate_array(rng, POLICY[x]),
                  "nothing:here", "os:environ", ":", "a:b:c", pick(rng, TEXTS), number(rng),
                  None]  # fmt: skip
        given = pick(rng, others)
    values = pick(rng, ["state", "state-action"])
    policy = ask(find_policy, given, allow_code=True) if given is not None else None
    table = policy.table if policy is not None else None
    if table is not None and isinstance(given, Path):
        plain = _plain_numbers(given)
        expect(np.allclose(table.sum(axis=1), 1), "rows do not sum to 1")
        if plain is not None and plain.shape == table.shape:
            plain = plain.astype(float)
            expect(np.allclose(table, plain / plain.sum(axis=1, keepdims=True), atol=1e-5), "other probabilities")
    done = ask(vf.evaluate, log, policy=given, values=values, discount=0.9, features="one-hot")
    expect(math.isfinite(done.policy_value.estimate), f"the policy value is {done.policy_value.estimate}")
    if values == "state" and table is not None:
        ratio = table[log.observations[log.now], np.asarray(log.action)] * 3
        expect(np.allclose(done.log.ratio, ratio, rtol=1e-6), "the ratios are not those of the table")
        return RIGHT
    return None


def starts_case(rng: Rng, folder: Path) -> str | None:
    """A file of starts, as the command line reads it, or an array as `starts` of `evaluate`."""
    labels = chance(rng, 0.3)
    log = small_log(labels=labels)
    array = rng.integers(0, 4, 3) if labels else np.round(rng.normal(size=(3, 2)), 3)
    path = _numbers_file(rng, folder, array, "starts")
    from_file = chance(rng, 0.8)
    starts = ask(read_starts, path, log) if from_file else mutate_array(rng, array)
    done = ask(vf.evaluate, log, starts=starts, discount=0.9, features="one-hot" if labels else "identity")
    estimate = done.policy_value.estimate
    expect(math.isfinite(estimate), f"the policy value is {estimate}")
    plain = _plain_numbers(path) if from_file else starts
    if plain is None or labels or plain.shape != np.shape(starts) or plain.dtype.kind not in "iuf":
        return None
    terms = np.asarray(plain, float) * done.result.theta / len(plain)
    expect(abs(terms.sum() - estimate) <= 1e-9 * np.abs(terms).sum(), f"value {estimate} instead of {terms.sum()}")
    return RIGHT


def prepare() -> None:
    results()
    evaluations()


TARGETS = [
    Target("policy", policy_case, prepare=prepare),
    Target("starts", starts_case),
    Target("result", result_case, prepare=prepare),
    Target("evaluation", evaluation_case, prepare=prepare),
]
