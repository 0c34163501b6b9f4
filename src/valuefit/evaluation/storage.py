"""Evaluations in .npz files: arrays and JSON, no pickle, without the code of features and policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import check_target
from valuefit.checks.check import Check
from valuefit.checks.cross_checks import CrossCheck
from valuefit.data.archive import read_archive, write_archive
from valuefit.data.facts import check_facts
from valuefit.data.labels import NAMED_FIELDS, check_names
from valuefit.data.serialise import as_plain, from_plain
from valuefit.data.transitions import Transitions, cluster_numbers
from valuefit.engine.result import Result, check_result
from valuefit.features.registry import Fitted, from_spec, make
from valuefit.inference.error_estimate import ErrorEstimate
from valuefit.inference.fit import Values
from valuefit.inference.following import Following
from valuefit.inference.policy_value import PolicyValue
from valuefit.inference.reach import RewardRange
from valuefit.messages import said, shown
from valuefit.policies.action_labels import Label
from valuefit.policies.policy import Policy, find_policy
from valuefit.typing import Array

FORMAT_VERSION = 2
FINGERPRINT_TOL = 1e-6  # relative: machines round differently
REMEDY = "Evaluate and save again."
# kinds of dtype of the columns that hold one number for each step
COLUMN_KINDS = {
    "now": "i", "next": "i", "episode": "i", "terminated": "b", "truncated": "b", "begins": "b", "cluster": "i",
    "reward": "f", "ratio": "f", "behaviour_prob": "f",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class StoredPolicy:
    """A policy without its code. table: (states, actions) with the labels of the actions, if it was given so."""

    name: str
    table: Array | None
    labels: tuple[Label, ...] | None


@dataclass(frozen=True, eq=False)
class Stored:
    """The contents of a file. features: how built-in ones are made again; None for the user's own.

    fingerprint: rows of some observations times a fixed vector. Other fields: as in `Evaluation`.
    """

    log: Transitions
    result: Result
    features: dict[str, Any] | None
    fingerprint: Array
    policy: StoredPolicy | None
    values: Values
    discount: float
    trace: float
    ridge: float
    seed: int
    reward_range: RewardRange | None
    starts: Array | None
    policy_value: PolicyValue
    notes: list[str]
    checks: tuple[Check, ...]
    cross_checks: tuple[CrossCheck, ...]
    follows: Following | None
    whole: tuple[int, int] | None
    weight_errors: tuple[ErrorEstimate, ...]


def write(stored: Stored, path: Path, *, force: bool) -> Path:
    """Write one .npz file of arrays and JSON."""
    check_target(path, force=force)
    arrays: dict[str, Array] = {}
    return write_archive(path, as_plain(stored, arrays), arrays, version=FORMAT_VERSION, force=force)


def read(path: Path) -> Stored:
    """Read a file of `write`, whose types and numbers are checked."""
    facts, arrays = read_archive(path, "evaluation", version=FORMAT_VERSION, remedy=REMEDY)
    try:
        stored: Stored = from_plain(Stored, facts, arrays)
        log = _checked_log(stored.log)
        check_result(stored.result)
        _check_value(stored.policy_value)
        _check_counts(stored)
    except ValueError as error:
        raise not_an_evaluation(path, error) from error
    return replace(stored, log=log)


def not_an_evaluation(path: Path, error: Exception) -> ValueError:
    """The refusal of a file, for a reason that another exception states."""
    return ValueError(f"{path} is not a valuefit evaluation: {said(error)}. {REMEDY}")


def _checked_log(log: Transitions) -> Transitions:
    """The log, with the columns validated, because compiled code does not check its indices."""
    n, m = log.now.size, log.observations.shape[0] if log.observations.ndim else 0
    for name in ("observations", "action", *COLUMN_KINDS):
        column = getattr(log, name)
        if column is None:
            continue
        kinds, alone = COLUMN_KINDS.get(name, "biuf"), name in COLUMN_KINDS
        length = m if name == "observations" else n
        if column.dtype.kind not in kinds or column.shape[:1] != (length,) or (alone and column.ndim != 1):
            raise ValueError(f"the column {name} of its log has dtype {column.dtype} and shape {column.shape}")
        if column.dtype.kind == "f" and name != "observations" and not np.isfinite(column).all():
            raise ValueError(f"the column {name} of its log is not finite")
    now, next = log.now, log.next
    if n == 0 or now.min() < 0 or next.min() < -1 or max(now.max(), next.max()) >= m:
        raise ValueError("the steps of its log point outside its observations")
    ids = {"obs": log.observations, "episode": log.episode, "action": log.action}
    for field, name in NAMED_FIELDS.items():
        if getattr(log, name) is not None:
            check_names(getattr(log, name), ids[field])
    check_facts(log.filling, log.continuity, log.observations)
    cluster = None if log.cluster is None else cluster_numbers(log.cluster, log.episode)
    return replace(log, cluster=cluster)._frozen()


def _check_value(value: PolicyValue) -> None:
    """Raise ValueError for a policy value that contradicts itself."""
    if not 0 < value.level < 1 or value.starts < 1:
        raise ValueError("the level of its interval is not between 0 and 1, or it has no starts")
    low, high = value.interval or (value.estimate, value.estimate)
    least, most = value.possible or (value.estimate, value.estimate)
    known = (value.interval, value.standard_error, value.effective_episodes)
    if not low <= min(max(value.estimate, least), most) <= high or (value.standard_error or 0.0) < 0:
        raise ValueError("the estimate, its standard error and its interval contradict each other")
    if len({one is None for one in known}) > 1:
        raise ValueError("it has a standard error without an interval, or the reverse")


def _check_counts(stored: Stored) -> None:
    """Raise ValueError for numbers of steps, episodes, weights and actions that cannot be."""
    steps, episodes = stored.whole or (len(stored.log), 1)
    if steps < len(stored.log) or not 1 <= episodes <= steps:
        raise ValueError(f"it is of {shown(steps)} steps and {shown(episodes)} episodes")
    if stored.follows is not None and (stored.follows.steps or 0) < 0:
        raise ValueError("it does not say for how many steps the log follows the policy")
    if stored.fingerprint.dtype.kind != "f":
        raise ValueError("its fingerprint does not hold numbers")
    if len(stored.weight_errors) not in (0, len(stored.result.theta)):
        raise ValueError(
            f"it has errors of {len(stored.weight_errors)} weights, but {len(stored.result.theta)} weights"
        )
    policy = stored.policy
    if policy is not None and policy.labels is not None:
        distinct = len(set(policy.labels))
        if policy.table is None or policy.table.shape[1:] != (distinct,) or distinct != len(policy.labels):
            raise ValueError("the labels of its policy are not those of the columns of a table")


# ---- what the file does not contain ------------------------------------------------------------------------------


def stored_features(stored: Stored, given: Any, path: Path) -> Fitted:
    """The given features, or the built-in ones that the file describes."""
    if given is not None:
        return make(given, stored.log)[0]
    if stored.features is None:
        raise ValueError(
            f"The evaluation in {path} used features of your own, which the file does not contain. Give them again: "
            "Evaluation.load(path, features=...)."
        )
    try:
        return from_spec(stored.features)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise not_an_evaluation(path, error) from error


def stored_policy(stored: Stored, given: Any, path: Path) -> Policy | None:
    """The given policy, or the one in the file; None for the policy of the log."""
    policy = stored.policy
    if given is not None:
        return find_policy(given, allow_code=True)
    if policy is None:
        return None
    if policy.table is not None:
        return replace(find_policy(policy.table), name=policy.name, labels=policy.labels)
    if stored.values == "state":  # its ratios are in the log; the policy itself is not needed
        return Policy(policy.name)
    raise ValueError(
        f"The evaluation in {path} used the policy {policy.name}, which is code, and the file does not contain it. "
        "Give it again: Evaluation.load(path, policy=...)."
    )


def check_weights(path: Path, stored: Stored, columns: int) -> None:
    """Raise ValueError if there is not one weight for each feature."""
    if stored.result.theta.shape != (columns,):
        raise ValueError(
            f"{path} holds {stored.result.theta.size} weights, but there are {columns} features. Give the features "
            "(and the policy) of that evaluation."
        )


def check_fingerprint(path: Path, stored: Stored, now: Array) -> None:
    """Raise ValueError if the rows of some observations are not those of the saved evaluation."""
    tol, before = FINGERPRINT_TOL, stored.fingerprint
    if now.shape != before.shape or not np.allclose(now, before, rtol=tol, atol=tol * np.abs(before).max()):
        raise ValueError(
            f"The given features (or the policy) are not those of the evaluation in {path}: they give different "
            "rows for observations of its log."
        )


def check_estimate(path: Path, estimate: float, start_row: Array, theta: Array) -> None:
    """Raise ValueError if the estimate is not that of the weights, as in a file that was edited."""
    expected = float(start_row @ theta)
    if abs(estimate - expected) > FINGERPRINT_TOL * float(np.abs(start_row) @ np.abs(theta)):
        error = ValueError(f"its policy value is {estimate:.6g}, but its weights give {expected:.6g}")
        raise not_an_evaluation(path, error)
