"""Match the columns of a source to the fields of a log, by name or by the user's mapping.

A field is valuefit's name (`obs`, `reward`, ...); a column is the name in the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from valuefit.messages import shown
from valuefit.typing import Array

# field -> column names that are recognised without a mapping (among them those of D4RL, Minari, d3rlpy and RLlib)
ALIASES: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observation", "observations"),
    "next_obs": ("next_obs", "next_observation", "next_observations", "new_obs"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminations", "terminals", "terminateds"),
    "truncated": ("truncated", "truncations", "timeouts", "truncateds"),
    "done": ("done", "dones"),
    "episode": ("episode", "episode_id", "eps_id"),
    "step": ("step", "t"),
    "behaviour_prob": ("behaviour_prob", "behavior_prob", "action_prob"),
    "behaviour_log_prob": ("behaviour_log_prob", "behavior_log_prob", "infos/action_log_probs", "action_logp"),
    "target_prob": ("target_prob",),
    "target_log_prob": ("target_log_prob",),
    "ratio": ("ratio",),
    "cluster": ("cluster",),
}
VECTOR_FIELDS = ("obs", "next_obs", "action")
ID_FIELDS = ("episode", "cluster", "action")  # whose entries may be ids: text is kept, also where it is digits
END_FIELDS = ("terminated", "truncated", "done")  # each marks ends of episodes
FIELD_OF_ALIAS = {alias: field for field, aliases in ALIASES.items() for alias in aliases}

# field -> its column, or a tuple of columns that are concatenated to a vector
ColumnMap = dict[str, str | tuple[str, ...]]


def match_columns(names: Sequence[str], columns: Mapping[str, Any] | None, where: str) -> ColumnMap:
    """The columns of each field that is present in a source with the column names `names`.

    `columns` maps fields to columns, `{"reward": "r", "obs": ["x", "v"]}`; for vector fields a string that is not a
    column is a prefix (`"x"` matches x_0, x_1, ...), and None ignores a column that would match by its name.
    `where` names the source in error messages.
    """
    mapping = _by_field(columns)
    matched: ColumnMap = {}
    for field in ALIASES:
        if field in mapping:
            if mapping[field] is not None:
                matched[field] = _mapped_columns(field, mapping[field], names, where)
            continue
        if "_log_prob" in field:
            alternative = field.replace("_log_prob", "_prob")
        else:
            alternative = field.replace("_prob", "_log_prob")
        if alternative != field and mapping.get(alternative) is not None:
            continue  # the user's mapping gives the same probability in the other form
        names_of_field = _find_by_alias(field, names, where)
        if names_of_field is not None:
            matched[field] = names_of_field
    if matched.get("behaviour_prob") == "action_prob" and matched.get("behaviour_log_prob") == "action_logp":
        del matched["behaviour_log_prob"]  # RLlib writes the same probability in both forms
    for field, example in (("obs", "obs_0, obs_1, ... (or one column obs)"), ("reward", "reward")):
        if field not in matched:
            raise ValueError(
                f"{where} has no column {example}. Name yours with `columns={{{field!r}: ...}}`; "
                f"it has {quote_names(names)}."
            )
    return matched


def may_match(columns: Mapping[str, Any] | None) -> Callable[[str], bool]:
    """Returns the test whether a column of this name can change what `match_columns` returns."""
    mapping = _by_field(columns)
    aliases: list[str] = []
    vectors: list[str] = []
    for field in ALIASES.keys() - mapping.keys():
        (vectors if field in VECTOR_FIELDS else aliases).extend(map(re.escape, ALIASES[field]))
    pattern = re.compile(f"{'|'.join(aliases)}|(?:{'|'.join(vectors)})(?:_?[0-9]{{1,9}})?")
    lists = [[value] if isinstance(value, str) else value for value in mapping.values() if isinstance(value, Sequence)]
    prefixes = tuple(str(name) for names in lists for name in names)
    return lambda name: name.startswith(prefixes) or pattern.fullmatch(name) is not None


def columns_of(matched: ColumnMap, field: str) -> tuple[str, ...]:
    """The columns of a field; none if it has no match."""
    names = matched.get(field, ())
    return (names,) if isinstance(names, str) else names


def columns_to_read(matched: ColumnMap) -> list[str]:
    """The columns of all matched fields, each once."""
    return list(dict.fromkeys(name for field in matched for name in columns_of(matched, field)))


def single_columns(matched: ColumnMap, fields: Sequence[str]) -> list[str]:
    """The columns of those of these fields that have one column each."""
    return list(dict.fromkeys(names for field in fields if isinstance(names := matched.get(field), str)))


def quote_names(names: Sequence[str] | Array) -> str:
    """Names for an error message; repr escapes the control characters of an untrusted file."""
    shown = ", ".join(repr(str(name)[:60]) for name in names[:20])
    return (shown or "no columns") + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _by_field(columns: Mapping[str, Any] | None) -> dict[str, Any]:
    """The user's mapping with aliases of fields replaced by the fields."""
    if columns is None:
        return {}
    mapping: dict[str, Any] = {}
    for name, value in columns.items():
        if name not in FIELD_OF_ALIAS:
            raise ValueError(
                f"columns maps {name!r}, which is not a valuefit name. The names are {', '.join(ALIASES)}."
            )
        field = FIELD_OF_ALIAS[name]
        if field in mapping:
            raise ValueError(f"columns maps {field!r} twice. Name it once.")
        mapping[field] = value
    return mapping


def _mapped_columns(field: str, value: Any, names: Sequence[str], where: str) -> str | tuple[str, ...]:
    """The columns that the user's mapping gives for a field; raises ValueError if the source does not have them."""
    if isinstance(value, str):
        if value in names:
            return value
        if field in VECTOR_FIELDS:
            numbered = _numbered_columns(value, names, where) or tuple(name for name in names if name.startswith(value))
            if numbered and value:
                return numbered
        raise _no_column(field, value, names, where)
    if field not in VECTOR_FIELDS or not isinstance(value, Sequence) or not value:
        kind = "a column, a prefix or a list of columns" if field in VECTOR_FIELDS else "one column"
        raise ValueError(f"columns must give {kind} for {field}; it gives {value!r}.")
    for name in value:
        if name not in names:
            raise _no_column(field, name, names, where)
    return tuple(value)


def _no_column(field: str, name: Any, names: Sequence[str], where: str) -> ValueError:
    return ValueError(
        f"{where} has no column {shown(name)}, which columns gives for {field}. It has {quote_names(names)}."
    )


def _find_by_alias(field: str, names: Sequence[str], where: str) -> str | tuple[str, ...] | None:
    """The column, or the numbered columns, with an alias of the field as name; raises ValueError if several match."""
    candidates: list[str | tuple[str, ...]] = [alias for alias in ALIASES[field] if alias in names]
    if field in VECTOR_FIELDS:
        candidates += [columns for alias in ALIASES[field] if (columns := _numbered_columns(alias, names, where))]
    if len(candidates) > 1:
        both = " and ".join(repr(one if type(one) is str else one[0]) for one in candidates[:2])
        raise ValueError(f"{where} has {both}, which both match {field}. Choose one with `columns={{{field!r}: ...}}`.")
    return candidates[0] if candidates else None


def _numbered_columns(prefix: str, names: Sequence[str], where: str) -> tuple[str, ...]:
    """prefix_0, prefix_1, ... (or prefix0, prefix1, ...), sorted by number: as text, 10 would sort before 2."""
    pattern = re.compile(re.escape(prefix) + r"_?([0-9]{1,9})")
    candidates = sorted((int(match[1]), name) for name in names if (match := pattern.fullmatch(name)))
    for (one, first), (other, second) in pairwise(candidates):
        if one == other:
            raise ValueError(f"{where} has {first!r} and {second!r}, which have the same number. Rename one of them.")
    return tuple(name for _, name in candidates)
