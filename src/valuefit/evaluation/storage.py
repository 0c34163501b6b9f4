"""Evaluations in .npz files: arrays and JSON, no pickle."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from valuefit.atomic import check_target
from valuefit.checks.check import OUTCOMES, Check
from valuefit.checks.cross_checks import CrossCheck
from valuefit.data.archive import is_number, read_archive, write_archive
from valuefit.data.facts import facts_from, plain_facts
from valuefit.data.labels import check_names
from valuefit.data.transitions import Transitions, cluster_numbers
from valuefit.engine.result import ARRAYS as RESULT_ARRAYS
from valuefit.engine.result import Result, result_facts, result_of
from valuefit.features.registry import Fitted, from_spec, make
from valuefit.inference.errors import ErrorEstimate
from valuefit.inference.following import Following
from valuefit.inference.uncertainty import KINDS
from valuefit.messages import said, shown
from valuefit.policies.policy import Policy, find_policy
from valuefit.typing import Array

FORMAT_VERSION = 1
SETTINGS = ("discount", "trace", "ridge", "values", "seed")
OPTIONAL_NUMBERS = (
    "standard_error",
    "effective_sample_size",
    "solver_error",
    "effective_episodes",
)  # of a policy value
ESTIMATE_TOL = FINGERPRINT_TOL = 1e-6  # relative: machines round differently
REMEDY = "Evaluate and save again."
WITHOUT_CHECKS = f"This evaluation was saved by version 0.1, which made few checks. {REMEDY}"
LOG_ARRAYS = (
    "observations", "now", "next", "reward", "terminated", "truncated", "episode", "ratio", "begins", "action",
    "behaviour_prob", "cluster",
)  # fmt: skip
OPTIONAL_LOG_ARRAYS = ("action", "behaviour_prob", "cluster")
# names of the ids in these columns, if text
NAME_ARRAYS = {"state_names": "observations", "episode_names": "episode", "action_names": "action"}
DTYPE_KINDS = {
    "now": "i", "next": "i", "episode": "i", "terminated": "b", "truncated": "b", "begins": "b", "cluster": "i",
    "reward": "f", "ratio": "f", "behaviour_prob": "f",
}  # fmt: skip


class Stored(NamedTuple):
    """The contents of a file, without code.

    facts: plain data for JSON. policy_table: (states, actions) or None. starts: the observations that the user gave;
    None if they were those of the log, and in files of version 0.1.
    """

    facts: dict[str, Any]
    log: Transitions
    result: Result
    policy_table: Array | None
    starts: Array | None


def write(stored: Stored, path: Path, *, force: bool) -> Path:
    """Write one .npz file of arrays and JSON."""
    check_target(path, force=force)
    result, log = stored.result, stored.log
    facts = {
        **stored.facts,
        "result": result_facts(result),
        "log": {
            "notes": list(log.notes),
            "source": log.source,
            "names": list(log.names),
            "warnings": list(log.warnings),
            "facts": plain_facts(log.filling, log.continuity),
        },
    }
    arrays = {name: getattr(result, name) for name in RESULT_ARRAYS}
    arrays |= {
        f"log_{name}": getattr(log, name) for name in (*LOG_ARRAYS, *NAME_ARRAYS) if getattr(log, name) is not None
    }
    if stored.policy_table is not None:
        arrays["policy_table"] = stored.policy_table
    if stored.starts is not None:
        arrays["starts"] = stored.starts
    return write_archive(path, as_plain(facts), arrays, version=FORMAT_VERSION, force=force)


def read(path: Path) -> Stored:
    """Read a file of `write`; the log and the result are validated."""
    facts, arrays = read_archive(path, "evaluation", version=FORMAT_VERSION, remedy=REMEDY)
    try:
        log = _log(arrays, dict(facts.pop("log")))
        result = result_of(dict(facts.pop("result")), arrays)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise not_an_evaluation(path, error) from error
    return Stored(facts, log, result, arrays.get("policy_table"), arrays.get("starts"))


def not_an_evaluation(path: Path, error: Exception) -> ValueError:
    """The refusal of a file, for a reason that another exception states."""
    reason = "an entry has a value of the wrong type"
    if not isinstance(error, TypeError | AttributeError):
        reason = f"{said(error)} is missing" if isinstance(error, KeyError) else said(error)
    return ValueError(f"{path} is not a valuefit evaluation: {reason}. {REMEDY}")


def settings_of(facts: dict[str, Any]) -> dict[str, Any]:
    """The settings of an evaluation, with their types checked."""
    settings = {name: facts[name] for name in SETTINGS}
    for name in ("discount", "trace", "ridge"):
        settings[name] = _finite(name, settings[name])
    if settings["values"] not in ("state", "state-action") or type(settings["seed"]) is not int:
        raise ValueError("values or seed are not those of an evaluation")
    return settings


def value_facts(value: Any) -> dict[str, Any]:
    """The facts of a policy value, with their types checked."""
    value = dict(value)
    interval = value["interval"]
    absent = {
        "effective_episodes": None,
        "method": "cr1",
        "bias": 0.0,
        "unseen": (0.0, 0.0),
        "possible": None,
    }  # in files of version 0.1
    value = {**absent, **value}
    for name in ("estimate", "level", "bias", *(name for name in OPTIONAL_NUMBERS if value[name] is not None)):
        value[name] = _finite(name, value[name])
    if not 0 < value["level"] < 1:
        raise ValueError("the level of the interval is not between 0 and 1")
    down, up = (_finite("unseen", change) for change in value["unseen"])
    value["unseen"] = (down, up)
    if value["possible"] is not None:
        least, most = (_finite("possible", end) for end in value["possible"])
        value["possible"] = (least, most)
    if value["method"] not in KINDS:
        raise ValueError("the method of the standard error is unknown")
    if type(value["starts"]) is not int or value["starts"] < 1:
        raise ValueError("the number of starts is not a whole number")
    if interval is not None:
        low, high = (_finite("interval", end) for end in interval)
        value["interval"] = (low, high)
        least, most = value["possible"] or (value["estimate"], value["estimate"])
        if (
            not low <= min(max(value["estimate"], least), most) <= high
            or value["standard_error"] is None
            or value["standard_error"] < 0
        ):
            raise ValueError("the estimate, its standard error and its interval contradict each other")
    return value


def checks_of(facts: dict[str, Any]) -> tuple[Check, ...]:
    """The checks of an evaluation, with their types checked; of version 0.1, its warnings."""
    if "checks" not in facts:
        messages = [*map(str, facts["warnings"]), WITHOUT_CHECKS]
        return tuple(Check("checks of version 0.1", "warn", message) for message in messages)
    found = []
    for entry in facts["checks"]:
        numbers = {
            name: None if entry[name] is None else _finite(name, entry[name])
            for name in ("statistic", "p_value", "size", "size_error")
        }
        if entry["outcome"] not in OUTCOMES:
            raise ValueError("the outcome of a check is unknown")
        found.append(Check(str(entry["name"]), entry["outcome"], str(entry["message"]), **numbers))
    return tuple(found)


def cross_checks_of(facts: dict[str, Any]) -> tuple[CrossCheck, ...]:
    """The cross-checks of an evaluation, with their types checked; none in files of version 0.1."""
    found = []
    for entry in facts.get("cross_checks", ()):
        error = entry["standard_error"]
        if entry["reliable"] not in (True, False) or entry["agrees"] not in (True, False, None):
            raise ValueError("a cross-check is neither reliable nor unreliable")
        found.append(CrossCheck(
            str(entry["name"]), _finite("estimate", entry["estimate"]),
            None if error is None else _finite("standard_error", error),
            _finite("effective_episodes", entry["effective_episodes"]), entry["reliable"], entry["agrees"],
            str(entry["note"]),
        ))  # fmt: skip
    return tuple(found)


def following_of(facts: dict[str, Any]) -> Following | None:
    """How far the log follows the policy, with its types checked; None in files of version 0.1."""
    if facts.get("follows") is None:
        return None
    steps, to_the_end = facts["follows"]["steps"], facts["follows"]["to_the_end"]
    if to_the_end not in (True, False) or not (steps is None or (type(steps) is int and steps >= 0)):
        raise ValueError("it does not say for how many steps the log follows the policy")
    return Following(steps, to_the_end)


def whole_of(facts: dict[str, Any], log: Transitions) -> tuple[int, int] | None:
    """Steps and episodes of a log that was read in parts, of which this is all or a sample."""
    whole = facts.get("whole")
    if whole is None:
        return None
    steps, episodes = whole
    if type(steps) is not int or type(episodes) is not int or not len(log) <= steps or not 1 <= episodes <= steps:
        raise ValueError(f"it is of {shown(steps)} steps and {shown(episodes)} episodes")
    return steps, episodes


def weight_errors_of(facts: dict[str, Any], theta: Array) -> tuple[ErrorEstimate, ...]:
    """The errors of the weights of a log that was read in parts, with their types checked; none of other logs."""
    found = []
    for entry in facts.get("weight_errors", ()):
        size, solver_error = (
            None if entry[name] is None else _finite(name, entry[name]) for name in ("standard_error", "solver_error")
        )
        effective, determined = _finite("effective_clusters", entry["effective_clusters"]), bool(entry["determined"])
        found.append(ErrorEstimate(size, effective, determined, str(entry["reason"]), solver_error))
    if found and len(found) != len(theta):
        raise ValueError(f"it has errors of {len(found)} weights, but {len(theta)} weights")
    return tuple(found)


def check_weights(path: Path, stored: Stored, columns: int) -> None:
    """Raise ValueError if there is not one weight for each feature."""
    if stored.result.theta.shape != (columns,):
        raise ValueError(
            f"{path} holds {stored.result.theta.size} weights, but there are {columns} features. Give the features "
            "(and the policy) of that evaluation."
        )


def check_fingerprint(path: Path, found: Array, expected: Array) -> None:
    """Raise ValueError if the rows of some observations are not those of the saved evaluation."""
    tol = FINGERPRINT_TOL
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=tol, atol=tol * np.abs(expected).max()):
        raise ValueError(
            f"The given features (or the policy) are not those of the evaluation in {path}: they give different "
            "rows for observations of its log."
        )


def stored_features(spec: dict[str, Any] | None, given: Any, log: Transitions, path: Path) -> Fitted:
    """The given features, or those of the spec in the file."""
    if given is not None:
        return make(given, log)[0]
    if spec is None:
        raise ValueError(
            f"The evaluation in {path} used features of your own, which the file does not contain. Give them again: "
            "Evaluation.load(path, features=...)."
        )
    try:
        return from_spec(spec)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise not_an_evaluation(path, error) from error


def labels_of_table(facts: dict[str, Any], table: Array | None) -> tuple[str | int, ...] | None:
    """The labels of the columns of a stored table of probabilities, with their types checked; None if it has none."""
    labels = facts.get("policy_labels")  # files of version 0.1 have none
    if labels is None:
        return None
    valid = all(type(label) in (str, int) for label in labels) and len(set(labels)) == len(labels)
    if not valid or table is None or table.shape[1:] != (len(labels),):
        raise ValueError("the labels of its policy are not those of the columns of a table")
    return tuple(labels)


def stored_policy(
    name: str | None, given: Any, table: Array | None, labels: tuple[str | int, ...] | None, values: str, path: Path
) -> Policy | None:
    """The given policy, or the one in the file; None for the policy of the log."""
    if given is not None:
        return find_policy(given, allow_code=True)
    if name is None:
        return None
    if table is not None:
        return replace(find_policy(table), name=str(name), labels=labels)
    if values == "state":  # its ratios are in the log; the policy itself is not needed
        return Policy(str(name))
    raise ValueError(
        f"The evaluation in {path} used the policy {name}, which is code, and the file does not contain it. Give it "
        "again: Evaluation.load(path, policy=...)."
    )


def check_estimate(path: Path, estimate: float, start_row: Array, theta: Array) -> None:
    """Raise ValueError if the estimate is not that of the weights, as in a file that was edited."""
    if not is_value_of(estimate, start_row, theta):
        expected = float(start_row @ theta)
        raise not_an_evaluation(
            path, ValueError(f"its policy value is {estimate:.6g}, but its weights give {expected:.6g}")
        )


def is_value_of(estimate: float, start_row: Array, theta: Array) -> bool:
    """Whether the estimate is the product of the two, up to rounding."""
    difference = abs(estimate - float(start_row @ theta))
    return difference <= ESTIMATE_TOL * float(np.abs(start_row) @ np.abs(theta))


def _finite(name: str, value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"{name} is not a finite number")
    return float(value)


def _log(stored: dict[str, Array], facts: dict[str, Any]) -> Transitions:
    """The log, with the columns validated, because compiled code does not check its indices."""
    present = [name for name in LOG_ARRAYS if name not in OPTIONAL_LOG_ARRAYS or f"log_{name}" in stored]
    columns: dict[str, Any] = {name: stored[f"log_{name}"] for name in present}
    n, m = len(columns["now"]), len(columns["observations"])
    for name, column in columns.items():
        right_length = name == "observations" or column.shape[:1] == (n,)
        vectors = name in ("observations", "action")
        if (
            not right_length
            or (column.ndim != 1 and not vectors)
            or column.dtype.kind not in DTYPE_KINDS.get(name, "biuf")
        ):
            raise ValueError(f"the column {name} of its log has dtype {column.dtype} and shape {column.shape}")
        if column.dtype.kind == "f" and name != "observations" and not np.isfinite(column).all():
            raise ValueError(f"the column {name} of its log is not finite")
    now, next = columns["now"], columns["next"]
    if n == 0 or now.min() < 0 or next.min() < -1 or max(now.max(), next.max()) >= m:
        raise ValueError("the steps of its log point outside its observations")
    if "cluster" in columns:
        columns["cluster"] = cluster_numbers(columns["cluster"], columns["episode"])
    notes, names = tuple(map(str, facts["notes"])), tuple(map(str, facts["names"]))
    for name, ids in NAME_ARRAYS.items():
        if f"log_{name}" in stored:
            columns[name] = check_names(stored[f"log_{name}"], columns.get(ids))
    warnings = tuple(map(str, facts.get("warnings", ())))  # files of version 0.1 have none
    of_source = facts_from(facts.get("facts", {}), columns["observations"])
    return Transitions(
        **columns, notes=notes, names=names, warnings=warnings, source=str(facts["source"]), **of_source
    )._frozen()


def as_plain(value: Any) -> Any:
    """Convert to numbers, text, lists and dicts for JSON; None for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): as_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(entry) for entry in value]
    if isinstance(value, np.generic | np.ndarray):
        return as_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
