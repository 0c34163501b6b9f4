"""Fill the gaps in the observations of a table before it becomes a log, or refuse it."""

from __future__ import annotations

import numpy as np

from valuefit.data.gaps import Column, Filling, fill_arrays, gaps_error, has_gaps
from valuefit.data.table import Table
from valuefit.data.validation import are_state_numbers
from valuefit.messages import RowError
from valuefit.typing import Array


def fill_gaps(table: dict[str, Array], columns: list[Column], source: Table, *, named: bool) -> Filling | None:
    """Fill the observations and next observations, in place, if the source is to be filled and has gaps.

    Adds the column "next_obs_missing", True where a next observation is missing as a whole. named: whether the
    observations are names of states.
    """
    obs, known = table["obs"], source.filling
    if known is not None and known.width != sum(one.stop - one.first for one in columns):
        known = None  # other columns were chosen than those that were saved
    if known is None and (source.missing == "refuse" or are_state_numbers(obs)):
        if not has_gaps(obs):
            table["obs"] = np.ma.getdata(obs)
            return None
        if are_state_numbers(obs):
            raise _unknown_states_error(obs, source, named=named)
        raise gaps_error(obs, columns, source.where)
    filled = fill_arrays(obs, table.get("next_obs"), columns, known)
    table["obs"], filling = filled[0], filled[3]
    if table.get("next_obs") is not None:
        table["next_obs"] = filled[1]
    if filled[2] is not None:
        table["next_obs_missing"] = filled[2]
    return filling


def _unknown_states_error(obs: Array, source: Table, *, named: bool) -> RowError:
    """The error for a single column of integers, or of text that became integers, some of which are missing."""
    missing, remedy = np.ma.getmaskarray(obs), ', as `missing="flag"` does' if named else ""
    return RowError(
        f"Column {source.matched['obs']!r} labels states, and {int(missing.sum()):,} of {len(obs):,} are missing, the "
        "first at", int(missing.argmax()), f". Give the missing state a label of its own{remedy}.", where=source.where,
    )  # fmt: skip
