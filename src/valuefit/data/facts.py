"""How gaps were filled and which steps are consecutive, as plain data in the files of logs and evaluations."""

from __future__ import annotations

import json
from typing import Any

from valuefit.data.continuity import Continuity
from valuefit.data.gaps import Filling
from valuefit.data.serialise import as_plain, from_plain
from valuefit.typing import Array


def plain_facts(filling: Filling | None, continuity: Continuity) -> dict[str, Any]:
    """The facts for JSON."""
    return {"filling": as_plain(filling), "continuity": as_plain(continuity)}


def facts_from(facts: Any, observations: Array | None = None) -> dict[str, Any]:
    """`filling` and `continuity` from plain data, in which they may be absent.

    observations: filled ones, which the filling must fit. Raises ValueError if the facts are damaged.
    """
    kinds = {"filling": Filling | None, "continuity": Continuity}
    given = from_plain(dict[str, Any], facts, name="facts")
    known = {name: from_plain(kind, given[name], name=name) for name, kind in kinds.items() if name in given}
    filling, continuity = known.get("filling"), known.get("continuity", Continuity())
    check_facts(filling, continuity, observations)
    return {"filling": filling, "continuity": continuity}


def check_facts(filling: Filling | None, continuity: Continuity, observations: Array | None = None) -> None:
    """Raise ValueError if they contradict themselves, or the filling does not fit filled observations."""
    counts = [count for count in vars(continuity).values() if isinstance(count, int)]
    if min(*counts, continuity.rewards.count, continuity.cut_rewards.count) < 0:
        raise ValueError("its counts of consecutive steps are damaged")
    if filling is None:
        return
    ends = [0, *(column.stop for column in filling.columns)]
    contiguous = [column.first for column in filling.columns] == ends[:-1] and ends[-1] == filling.width
    inside = all(0 <= one.first < one.stop <= filling.width for one in filling.gaps)
    if not (contiguous and inside and filling.gaps) or min(filling.shape, default=1) < 1:
        raise ValueError("its facts on gaps and consecutive steps are damaged")
    if observations is not None and observations.shape[1:] != filling.filled_shape:
        raise ValueError("what fills its gaps does not fit its observations")


def facts_in(text: str, where: str) -> dict[str, Any]:
    """The facts that a file holds as JSON."""
    try:
        return facts_from(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: what it says on gaps cannot be read. Write it again.") from error
