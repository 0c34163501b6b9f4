"""An evaluation in one .npz file: arrays and JSON, nothing that would have to be unpickled."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from valuefit.data.transitions import Array, Transitions
from valuefit.engine.result import Result, write_bytes
from valuefit.evaluation.evaluation import Evaluation, PolicyValue, as_plain, make_problem, value_rows
from valuefit.evaluation.policy import Policy, find_policy
from valuefit.features.registry import Fitted, from_spec, make
from valuefit.rows.storage import memory_limit

FORMAT = 1
PROBES = 32  # observations of the log on which features given again are checked
CLOSE = 1e-6  # how near their rows must come: machines round differently
RESULT_ARRAYS = ("theta", "w", "history")
LOG_ARRAYS = (
    "observations", "now", "next", "reward", "terminated", "truncated", "episode", "ratio", "begins", "action",
    "behaviour_prob",
)  # fmt: skip
OPTIONAL = ("action", "behaviour_prob")
KINDS = {"now": "i", "next": "i", "episode": "i", "terminated": "b", "truncated": "b", "begins": "b"}
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): npy.read_array_header_2_0}


def write(evaluation: Evaluation, path: Path, *, force: bool) -> Path:
    """Everything but code: the user's own features and policies are left out, and asked for when loading."""
    if os.path.lexists(path) and not force:
        raise ValueError(f"{path} is there already. Choose another name, or overwrite it with force=True.")
    result, log, policy = evaluation.result, evaluation.log, evaluation.policy
    facts = {
        "format": FORMAT,
        "result": {f.name: getattr(result, f.name) for f in fields(result) if f.name not in RESULT_ARRAYS},
        "policy_value": vars(evaluation.policy_value),
        **{name: getattr(evaluation, name) for name in ("discount", "trace", "ridge", "values", "seed")},
        "notes": evaluation.notes,
        "warnings": evaluation.warnings,
        "spec": evaluation.features.spec,
        "fingerprint": fingerprint(evaluation),
        "policy": None if policy is None else policy.name,
        "log": {"notes": list(log.notes), "source": log.source, "names": list(log.names)},
    }
    arrays = {name: getattr(result, name) for name in RESULT_ARRAYS}
    arrays |= {f"log_{name}": getattr(log, name) for name in LOG_ARRAYS if getattr(log, name) is not None}
    if policy is not None and policy.table is not None:
        arrays["policy_table"] = policy.table
    stream = io.BytesIO()
    np.savez(stream, facts=np.array(json.dumps(as_plain(facts), allow_nan=False)), **arrays)
    return write_bytes(path, stream.getvalue())


def read(path: Path, *, features: Any, policy: Any) -> Evaluation:
    """The evaluation, its problem made anew from the log; features and policy given again are checked."""
    try:
        stored = _arrays(path)
        facts = dict(json.loads(str(stored.pop("facts"))))
        version = facts.pop("format")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, LookupError, TypeError, EOFError, NotImplementedError, RuntimeError, zlib.error,
            zipfile.BadZipFile) as error:  # fmt: skip
        raise ValueError(
            f"{path} is not a valuefit evaluation, or was cut short ({error}). Evaluate again and save it anew."
        ) from error
    if version != FORMAT:
        raise ValueError(
            f"{path} has evaluation format {version}; this version of valuefit reads format {FORMAT}. Load it with the "
            "version that wrote it, or evaluate again."
        )
    try:
        log = _log(stored, facts["log"])
        told: dict[str, Any] = {**facts["result"], **{name: stored[name] for name in RESULT_ARRAYS}}
        result = Result(**{**told, "dead": tuple(told["dead"])})
        value = dict(facts["policy_value"])
        value["interval"] = None if value["interval"] is None else tuple(value["interval"])
        settings = {name: facts[name] for name in ("discount", "trace", "ridge", "values", "seed")}
        kept = PolicyValue(**value), list(map(str, facts["notes"])), list(map(str, facts["warnings"]))
        spec, wanted, named = facts["spec"], np.asarray(facts["fingerprint"], float), facts["policy"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a valuefit evaluation: {error}. Evaluate again and save it anew.") from error
    fitted = _features(spec, features, log, path)
    found = _policy(named, policy, stored.get("policy_table"), settings["values"], path)
    problem = make_problem(
        log, fitted, found, settings["values"], settings["discount"], settings["trace"], settings["ridge"]
    )
    if result.theta.shape != (problem.d,) or not np.isfinite(result.theta).all():
        raise ValueError(
            f"{path} holds {result.theta.size} weights, but these features are {problem.d}. Give the features (and "
            "the policy) that it was made with."
        )
    policy_value, notes, warnings = kept
    loaded = Evaluation(
        log=log, problem=problem, result=result, features=fitted, policy=found, policy_value=policy_value,
        notes=notes, warnings=warnings, **settings,
    )  # fmt: skip
    here = fingerprint(loaded)
    if here.shape != wanted.shape or not np.allclose(here, wanted, rtol=CLOSE, atol=CLOSE * np.abs(wanted).max()):
        raise ValueError(
            f"The features (or the policy) given are not those that {path} was made with: on observations of its log "
            "they give other rows."
        )
    return loaded


def fingerprint(evaluation: Evaluation) -> Array:
    """Rows of some observations of the log times a fixed vector: numbers that other features would not give.

    Numbers and not a hash, for the last digit of a cosine differs from machine to machine.
    """
    log, d = evaluation.log, evaluation.problem.d
    chosen = np.unique(np.linspace(0, len(log) - 1, PROBES).astype(int))
    rows = value_rows(evaluation.features, evaluation.values, evaluation.policy, d, log.observations[log.now[chosen]])
    return np.asarray(rows @ np.cos(1 + np.arange(rows.shape[1]) ** 1.5), dtype=np.float64).ravel()


def _features(spec: dict[str, Any] | None, given: Any, log: Transitions, path: Path) -> Fitted:
    if given is not None:
        return make(given, log)[0]
    if spec is None:
        raise ValueError(
            f"{path} was made with features of your own, which a file cannot hold. Give them again: "
            "Evaluation.load(path, features=...)."
        )
    return from_spec(spec)


def _policy(name: str | None, given: Any, table: Array | None, values: str, path: Path) -> Policy | None:
    if given is not None:
        return find_policy(given, allow_code=True)
    if name is None:
        return None
    if table is not None:
        return replace(find_policy(table), name=str(name))
    if values == "state":  # its ratios are in the log, and nothing else is asked of it
        return Policy(str(name))
    raise ValueError(
        f"{path} was made with the policy {name}, which is code, and a file cannot hold that. Give it again: "
        "Evaluation.load(path, policy=...)."
    )


def _arrays(path: Path) -> dict[str, Array]:
    """All arrays of the file, after a look at the sizes that it declares."""
    found: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        total = 0
        for info in archive.infolist():
            with archive.open(info) as stream:
                shape, _, dtype = HEADERS[npy.read_magic(stream)](stream)
            size = math.prod(shape) * dtype.itemsize
            total += info.file_size
            if size > info.file_size or total > memory_limit():
                raise ValueError("it declares more than it holds, or more than half of this machine's memory")
        for info in archive.infolist():
            with archive.open(info) as stream:
                found[info.filename.removesuffix(".npy")] = np.asarray(npy.read_array(stream, allow_pickle=False))
    return found


def _log(stored: dict[str, Array], told: dict[str, Any]) -> Transitions:
    """The log, its columns checked, for kernels trust them."""
    columns = {name: stored[f"log_{name}"] for name in LOG_ARRAYS if name not in OPTIONAL or f"log_{name}" in stored}
    n, m = len(columns["now"]), len(columns["observations"])
    for name, column in columns.items():
        whole = name == "observations" or column.shape[:1] == (n,)
        if not whole or column.dtype.kind not in KINDS.get(name, "biuf"):
            raise ValueError(f"the column {name} of its log has dtype {column.dtype} and shape {column.shape}")
        if column.dtype.kind == "f" and name != "observations" and not np.isfinite(column).all():
            raise ValueError(f"the column {name} of its log is not finite")
    now, next = columns["now"], columns["next"]
    if n == 0 or now.min() < 0 or next.min() < -1 or max(now.max(), next.max()) >= m:
        raise ValueError("the steps of its log point outside its observations")
    notes, names = tuple(map(str, told["notes"])), tuple(map(str, told["names"]))
    return Transitions(**columns, notes=notes, names=names, source=str(told["source"]))._frozen()
