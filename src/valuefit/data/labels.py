"""Ids and actions that are text (names, UUIDs) as numbers: the k-th name in sorted order has number k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from valuefit.data.columns import quote_names
from valuefit.messages import RowError, said, shown
from valuefit.typing import Array

# field whose entries may be text -> attribute of a log, and array in files, that lists all names
NAMED_FIELDS = {"obs": "state_names", "episode": "episode_names", "action": "action_names"}
MAX_ID_CHARACTERS = 200  # longer text is not an id; bounds the memory of an array of names


def is_text(values: Any) -> bool:
    """Whether an array holds text, or objects that may be text."""
    return np.asarray(values).dtype.kind in "OSUT"


def reads_as_number(text: Any) -> bool:
    """Whether text reads as a number."""
    try:
        float(text)
    except (ValueError, TypeError):
        return False
    return True


def first_text(values: Array) -> tuple[int, str]:
    """Row and text of the first entry of a text column that is not a number; of the first entry if all are numbers."""
    known = [(row, str(text)) for row, text in enumerate(values.tolist()) if text is not None]
    return next(((row, text) for row, text in known if not reads_as_number(text)), known[0] if known else (0, ""))


def as_text(values: Any, name: str) -> list[str | None]:
    """Entries of a one-dimensional array as text, None where missing or empty; raises ValueError for other objects."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; ids that are text must be one per step.")
    masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else np.zeros(len(array), bool)
    texts = [None if missing else value for value, missing in zip(array.tolist(), masked, strict=True)]
    for row, value in enumerate(texts):
        if isinstance(value, bytes):
            try:
                texts[row] = value = value.decode()
            except UnicodeDecodeError as error:
                reason = f" ({said(error)}). Write it as UTF-8."
                raise RowError(f"{name} is not UTF-8 text at", row, reason) from None
        if isinstance(value, str):
            if len(value) > MAX_ID_CHARACTERS or "\0" in value:
                requirement = f": ids have at most {MAX_ID_CHARACTERS} characters, and no null."
                raise RowError(f"{name} is no id at", row, requirement)
            texts[row] = value or None
        elif value is None or type(value).__name__ == "NAType" or value != value:
            texts[row] = None
        else:
            what = f"{name} is an object of type {type(value).__name__} at"
            raise RowError(what, row, ". Give numbers, or ids as text.")
    return texts


def refuse_numbers_as_text(
    texts: Sequence[str | None], what: str, place: Callable[[int], str], *, names: bool = False
) -> None:
    """Raise ValueError if some entries of a text column are numbers: then the others are typing errors, not names.

    place: the name of a row, for the message. names: accept numbers among at least as many words, as one of the names
    may be "10", and with codes such as "007", which a number is not written as.
    """
    distinct = set(texts) - {None}
    numeric = {text for text in distinct if reads_as_number(text)}
    coded = any(text.isdecimal() and str(int(text)) != text for text in numeric if text is not None)
    if not numeric or (names and (coded or 2 * len(numeric) <= len(distinct))):
        return
    row, text = next((row, text) for row, text in enumerate(texts) if text in (distinct - numeric or numeric))
    number = next(text for text in texts if text in numeric)
    remedy = "If that is a typing error, correct it" if numeric < distinct else "Write all of them as numbers"
    raise ValueError(
        f"{what} holds text, {text!r} at {place(row)}, and numbers, such as {number!r}. {remedy}; if all are names, "
        f"write each so that it is not a number, as in 'no. {number}'."
    )


def refuse_text_entries(observations: Any, names: Sequence[str]) -> None:
    """Raise ValueError naming the first entry of observations that is text. names: of the entries, if known."""
    try:
        if not is_text(observations):
            return
        entries = np.asarray(observations, dtype=object)
    except ValueError:  # rows of unequal length, which the caller refuses
        return
    place = next((place for place, entry in np.ndenumerate(entries) if isinstance(entry, str | bytes)), None)
    if place is None:
        return
    where = f" in row {place[0]}" if place else ""
    order = f"{len(names)} numbers, in this order: {quote_names(names)}" if names else "numbers only"
    remedy = (
        " A category is 1 in the entry of its name and 0 in the others." if any("=" in one for one in names) else ""
    )
    raise ValueError(f"The entry {shown(entries[place])}{where} is text. Give observations of {order}.{remedy}")


def number_names(columns: Sequence[Sequence[str | None]], known: Sequence[str] = ()) -> tuple[Array, list[Array]]:
    """All names in the columns and in `known`, sorted, and each column as their numbers, masked where missing."""
    names = sorted({name for column in columns for name in column if name is not None} | set(known))
    number = {name: k for k, name in enumerate(names)}
    numbers = []
    for column in columns:
        codes = np.fromiter((number.get(name, -1) for name in column), np.int64, len(column))  # type: ignore[arg-type]
        numbers.append(np.ma.masked_less(codes, 0) if (codes < 0).any() else codes)
    return np.array(names, dtype=str), numbers


def distinct_names(values: Any, name: str) -> set[str]:
    """The different names in a column of text, without missing ones."""
    return {text for text in as_text(values, name) if text is not None}


def check_names(names: Array, ids: Array | None) -> Array:
    """`names` if they are the sorted names of all `ids`, which index them; raises ValueError otherwise."""
    if names.ndim != 1 or names.dtype.kind != "U" or not (names[1:] > names[:-1]).all():
        raise ValueError("is not a sorted list of names")
    known = ids is not None and ids.ndim == 1 and ids.dtype.kind in "iu"
    if ids is None or not known or ids.min(initial=0) < 0 or ids.max(initial=0) >= len(names):
        raise ValueError("does not name every id")
    return names


def find_names(values: Any, names: Array | None, kind: str) -> Any:
    """Text as numbers by the sorted `names`; anything else unchanged. `kind` is what has names: "state", "episode"."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of unequal length, which the caller refuses
        return values
    if not is_text(array):
        return values
    if names is None:
        raise ValueError(f"The log numbers its {kind}s and has no names for them. Give {kind} numbers.")
    wanted = array.astype(str)
    position = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    unknown = names[position] != wanted
    if unknown.any():
        raise ValueError(f"There is no {kind} {str(wanted[unknown][0])[:60]!r} in this log.")
    return position
