"""Labels of actions: which action of the log each column of a policy's probabilities belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import array_of
from valuefit.messages import shown
from valuefit.typing import Array

LISTED_LABELS = 20  # in a message

Label = str | int


def labels_of(given: Any, name: str) -> tuple[Label, ...]:
    """Labels as text or whole numbers: those of NumPy, bytes, booleans and whole floats are converted."""
    labels = tuple(map(_plain, np.asarray(given, object).tolist()))
    wrong = next((label for label in labels if not isinstance(label, str | int)), None)
    if wrong is not None:
        raise ValueError(f"{name} has probabilities of {shown(wrong)}, but an action is one number or one text.")
    if len(set(labels)) < len(labels):
        raise ValueError(f"{name} has several probabilities of one action: it knows {listed(labels)}.")
    return labels


def _plain(label: Any) -> Any:
    label = label.item() if isinstance(label, np.generic) else label
    if isinstance(label, bytes):
        return label.decode(errors="replace")
    return int(label) if isinstance(label, int | float) and label == label // 1 else label


def labels_in(log: Transitions) -> tuple[Label, ...] | None:
    """The labels of the actions of a log, by number; None without actions that can be counted."""
    if log.action_names is not None:
        return tuple(log.action_names.tolist())
    action = log.action
    if action is None or action.dtype.kind not in "biuf" or action[0].size != 1:
        return None
    count = action.max() + 1
    return tuple(range(int(count))) if 0 < count <= max_actions(len(log)) and (action % 1 == 0).all() else None


def max_actions(steps: int) -> int:
    """The most actions that are numbered in a log of this many steps; larger numbers have gaps, or are no numbers."""
    return 10 * steps + 1000


def listed(labels: Sequence[Label]) -> str:
    """Labels for a message."""
    more = f" and {len(labels) - LISTED_LABELS} more" if len(labels) > LISTED_LABELS else ""
    return ", ".join(map(shown, labels[:LISTED_LABELS])) + more


def label_of(number: int, known: Sequence[Label] | Array | None) -> str:
    """The label of an action, for a message."""
    return shown(known[number]) if known is not None and number < len(known) else str(number)


def split_labels(values: Any, name: str) -> tuple[Any, tuple[Label, ...] | None]:
    """Probabilities as an array with one column for each label, from a mapping or a data frame; others unchanged."""
    if isinstance(values, Mapping):
        labels, columns = labels_of(list(values), name), list(values.values())
    elif type(values).__module__.partition(".")[0] in ("pandas", "polars") and np.ndim(values) == 2:
        given = list(values.columns)
        labels = labels_of(given, name)
        columns = [values[column] for column in given]
    else:
        return values, None
    titles = [f"The probability of {shown(label)} of {name}" for label in labels]
    arrays = [array_of(title, column) for title, column in zip(titles, columns, strict=True)]
    if not arrays or len({array.shape for array in arrays}) > 1 or arrays[0].ndim > 1:
        raise ValueError(f"{name} must give a number, or one number for each observation, for each of its actions.")
    return np.stack(arrays, axis=-1), labels


def all_labels(labels: Sequence[Label], known: Sequence[Label], name: str) -> tuple[Label, ...]:
    """The labels by number: those of the log, then others of the policy.

    Either side may have labels that the other lacks, but not both sides: then some may mean the same action.
    Raises ValueError in that case, with both lists.
    """
    further = set(labels) - set(known)
    number_gap = isinstance(known[0], int) and further != set(range(len(known), len(known) + len(further)))
    if further and (set(known) - set(labels) or number_gap):
        raise ValueError(
            f"{name} knows the actions {listed(labels)}; the log has {listed(known)}. Give both the same labels "
            "(actions of a log may be text), or probabilities without labels (a file without its header line) in the "
            "order of the log's actions."
        )
    return (*known, *sorted(further, key=str if isinstance(known[0], str) else int))


def by_number(values: Array, labels: Sequence[Label], known: Sequence[Label], name: str) -> Array:
    """Probabilities with a column for each action by number, from columns with these labels; 0 without a column."""
    every = {label: number for number, label in enumerate(all_labels(labels, known, name))}
    if values.ndim != 2 or values.shape[1] != len(labels):
        raise ValueError(
            f"{name} returned an array of shape {values.shape}, but it knows {len(labels)} actions ({listed(labels)}). "
            "It must return one column for each of them."
        )
    placed = np.zeros((len(values), len(every)), values.dtype)
    placed[:, [every[label] for label in labels]] = values
    return placed
