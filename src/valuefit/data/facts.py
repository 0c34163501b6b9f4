"""How gaps were filled and which steps are consecutive, as plain data in the files of logs and evaluations."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

from valuefit.data.archive import is_number
from valuefit.data.continuity import Continuity, Spread
from valuefit.data.gaps import Column, Filling, Gap
from valuefit.typing import Array


def plain_facts(filling: Filling | None, continuity: Continuity) -> dict[str, Any]:
    """The facts for JSON."""
    filled = None
    if filling is not None:
        gaps = [vars(gap) for gap in filling.gaps]
        filled = {"columns": [list(column) for column in filling.columns], "shape": list(filling.shape), "gaps": gaps}
    return {"filling": filled, "continuity": asdict(continuity)}


def facts_from(facts: Any, observations: Array | None = None) -> dict[str, Any]:
    """`filling` and `continuity` from plain data, in which they may be absent.

    observations: filled ones, which the filling must fit. Raises ValueError if the facts are damaged.
    """
    try:
        filling = None if facts.get("filling") is None else _filling(facts["filling"])
        counts = dict(facts.get("continuity", {}))
        rewards: dict[str, Any] = {
            name: Spread(**counts.pop(name)) for name in ("rewards", "cut_rewards") if name in counts
        }
        continuity = Continuity(**counts, **rewards)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError("its facts on gaps and consecutive steps are damaged") from error
    names = {one.name for one in fields(Continuity)}
    if set(counts) - names or not all(type(count) is int and count >= 0 for count in counts.values()):
        raise ValueError("its counts of consecutive steps are damaged")
    for one in rewards.values():
        if type(one.count) is not int or one.count < 0 or not (is_number(one.mean) and is_number(one.deviation)):
            raise ValueError("what it says of its rewards is damaged")
    if filling is not None and observations is not None and observations.shape[1:] != filling.filled_shape:
        raise ValueError("what fills its gaps does not fit its observations")
    return {"filling": filling, "continuity": continuity}


def facts_in(text: str, where: str) -> dict[str, Any]:
    """The facts that a file holds as JSON."""
    try:
        return facts_from(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: what it says on gaps cannot be read. Write it again.") from error


def _filling(facts: dict[str, Any]) -> Filling:
    columns = tuple(
        Column(str(name), int(first), int(stop), bool(several)) for name, first, stop, several in facts["columns"]
    )
    gaps = tuple(
        Gap(str(one["name"]), int(one["first"]), int(one["stop"]), float(one["fill"]), float(one["share"]))
        for one in facts["gaps"]
    )
    filling = Filling(columns, tuple(int(length) for length in facts["shape"]), gaps)
    ends = [0, *(column.stop for column in columns)]
    whole = [column.first for column in columns] == ends[:-1] and ends[-1] == filling.width
    inside = all(0 <= one.first < one.stop <= filling.width and math.isfinite(one.fill + one.share) for one in gaps)
    if not (whole and inside and gaps) or min(filling.shape, default=1) < 1:
        raise ValueError
    return filling
