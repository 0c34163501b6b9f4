"""Which of a source's columns is which of ours: by name, or by the user's own mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

# our name -> names under which it is found without being asked for (D4RL's, Minari's and d3rlpy's among them)
KNOWN: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observation", "observations"),
    "next_obs": ("next_obs", "next_observation", "next_observations"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminations", "terminals"),
    "truncated": ("truncated", "truncations", "timeouts"),
    "done": ("done", "dones"),
    "episode": ("episode", "episode_id"),
    "step": ("step", "t"),
    "behaviour_prob": ("behaviour_prob", "behavior_prob"),
    "behaviour_log_prob": ("behaviour_log_prob", "behavior_log_prob", "infos/action_log_probs"),
    "target_prob": ("target_prob",),
    "target_log_prob": ("target_log_prob",),
    "ratio": ("ratio",),
}
VECTORS = ("obs", "next_obs", "action")
OURS = {alias: ours for ours, aliases in KNOWN.items() for alias in aliases}

Choice = dict[str, str | tuple[str, ...]]


def choose(names: Sequence[str], columns: Mapping[str, Any] | None, where: str) -> Choice:
    """Our name -> theirs: a string for one column, a tuple for columns that stand side by side.

    `columns` maps ours to theirs, `{"reward": "r", "obs": ["x", "v"]}`; for vectors a string that is no column
    is a prefix (`"x"` finds x_0, x_1, ...), and None leaves out a column that would be found by its name.
    """
    mapped = _ours(columns)
    chosen: Choice = {}
    for ours in KNOWN:
        if ours in mapped:
            if mapped[ours] is not None:
                chosen[ours] = _theirs(ours, mapped[ours], names, where)
            continue
        twin = ours.replace("_log_prob", "_prob") if "_log_prob" in ours else ours.replace("_prob", "_log_prob")
        if twin != ours and mapped.get(twin) is not None:
            continue  # the user said where the probability is
        found = _find(ours, names, where)
        if found is not None:
            chosen[ours] = found
    for ours, example in (("obs", "obs_0, obs_1, ... (or one column obs)"), ("reward", "reward")):
        if ours not in chosen:
            raise ValueError(
                f"{where} has no column {example}. Name yours with columns={{{ours!r}: ...}}; it has {listed(names)}."
            )
    return chosen


def needed(chosen: Choice) -> list[str]:
    """Their names, each once."""
    return list(
        dict.fromkeys(name for value in chosen.values() for name in ((value,) if type(value) is str else value))
    )


def listed(names: Sequence[str]) -> str:
    """Names for a sentence; repr keeps control characters of an untrusted file out of the terminal."""
    shown = ", ".join(repr(str(name)[:60]) for name in names[:20])
    return (shown or "no columns") + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _ours(columns: Mapping[str, Any] | None) -> dict[str, Any]:
    """The user's mapping under our own names."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        raise ValueError(f"columns must map our names to yours, as in {{'reward': 'r'}}; it is {columns!r}.")
    mapped: dict[str, Any] = {}
    for name, value in columns.items():
        if name not in OURS:
            raise ValueError(f"columns maps {name!r}, which valuefit does not know. It knows {', '.join(KNOWN)}.")
        if OURS[name] in mapped:
            raise ValueError(f"columns maps {OURS[name]!r} twice. Name it once.")
        mapped[OURS[name]] = value
    return mapped


def _theirs(ours: str, value: Any, names: Sequence[str], where: str) -> str | tuple[str, ...]:
    """The columns that the user named, which must be there."""
    if isinstance(value, str):
        if value in names:
            return value
        if ours in VECTORS:
            numbered = _numbered(value, names, where) or tuple(name for name in names if name.startswith(value))
            if numbered and value:
                return numbered
        raise ValueError(f"{where} has no column {value!r}, which columns names for {ours}. It has {listed(names)}.")
    if ours not in VECTORS or not isinstance(value, Sequence) or not value:
        kind = "a column, a prefix or a list of columns" if ours in VECTORS else "one column"
        raise ValueError(f"columns must name {kind} for {ours}; it says {value!r}.")
    for name in value:
        if name not in names:
            raise ValueError(f"{where} has no column {name!r}, which columns names for {ours}. It has {listed(names)}.")
    return tuple(value)


def _find(ours: str, names: Sequence[str], where: str) -> str | tuple[str, ...] | None:
    """The column that bears one of the known names; two of them are refused, for one would be ignored."""
    found: list[str | tuple[str, ...]] = [alias for alias in KNOWN[ours] if alias in names]
    if ours in VECTORS:
        found += [columns for alias in KNOWN[ours] if (columns := _numbered(alias, names, where))]
    if len(found) > 1:
        both = " and ".join(repr(one if type(one) is str else one[0]) for one in found[:2])
        raise ValueError(f"{where} has {both}, which both mean {ours}. Say which with columns={{{ours!r}: ...}}.")
    return found[0] if found else None


def _numbered(prefix: str, names: Sequence[str], where: str) -> tuple[str, ...]:
    """prefix_0, prefix_1, ... (or prefix0, prefix1, ...), by number: as text, 10 would come before 2."""
    pattern = re.compile(re.escape(prefix) + r"_?([0-9]{1,9})")
    found = sorted((int(match[1]), name) for name in names if (match := pattern.fullmatch(name)))
    for (one, first), (other, second) in pairwise(found):
        if one == other:
            raise ValueError(f"{where} has {first!r} and {second!r}, which bear the same number. Rename one of them.")
    return tuple(name for _, name in found)
