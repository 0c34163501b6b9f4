"""Build a log from named columns: concatenate, sort, find the ends of episodes, drop incomplete steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from valuefit.data.columns import END_FIELDS, VECTOR_FIELDS, ColumnMap, columns_of, quote_names
from valuefit.data.continuity import Continuity, Spread, continuity_of, find_jumps
from valuefit.data.exact import common_dtype, exact, in_native_order
from valuefit.data.fill import fill_gaps
from valuefit.data.gaps import Column, GapScan
from valuefit.data.labels import NAMED_FIELDS, as_text, is_text, number_names, refuse_numbers_as_text
from valuefit.data.table import Table
from valuefit.data.text import refuse_text
from valuefit.data.transitions import Transitions
from valuefit.data.validation import (
    ROWS_PER_CHECK,
    among,
    are_state_numbers,
    check_observations,
    episode_starts,
    first_row,
    flags,
    last_steps,
    numbers,
    step_numbers,
)
from valuefit.messages import RowError, shown
from valuefit.typing import Array

# of scalar columns concatenated at a time; at powers of two the columns of a block compete for the same cache lines
ROWS_PER_COPY = 3000


def build_log(source: Table) -> Transitions:
    """The log of the matched columns; its notes list what was assumed.

    The last step of an episode is left out if it neither terminated nor has a next observation.
    """
    return _without_incomplete(_whole_log(source))


def _whole_log(source: Table) -> Transitions:
    """The log of the matched columns with all steps; next is -1, too, where a next observation is unknown.

    Text in `episode`, or in a single column `obs` or `action`, names episodes, states or actions.
    Rows are sorted by episode and step where they are out of order. Without `episode`, the end flags delimit
    episodes, and each of several files ends one. `done` alone is treated as terminated.
    """
    matched, where, notes = source.matched, source.where, list(source.notes)
    columns: list[Column] = []  # of the observations
    table = {field: _read_field(field, names, source, columns) for field, names in matched.items()}
    _check_lengths(table, matched, where)
    names = _number_ids(table, source)
    table = {field: _number_column(field, matched[field], values, source) for field, values in table.items()}
    filling = fill_gaps(table, columns, source, named="obs" in names)
    if filling is not None:
        notes.append(filling.sentence())
    _complete_next(table)
    if "episode" in table and "step" not in table:
        _refuse_ids_of_several_files(table["episode"], source, names.get("episode"))
    table = _sort_rows(table, notes, names.get("episode"))
    n = len(table["obs"])
    terminated, truncated = _episode_ends(table, matched, notes, where)
    episode = table.get("episode")
    if episode is None and source.files:
        _end_at_files(source, terminated, truncated, notes)
    ended = terminated | truncated
    if episode is None:
        episode = np.concatenate(([0], np.cumsum(ended[:-1]))) if n else np.zeros(0, int)
        _check_steps_increase(table, ended)
    begins = episode_starts(episode)
    jumps = find_jumps(numbers("step", table["step"], dtype=None), ~begins[1:]) if "step" in table else None
    only_done = "done" in table and not {"terminated", "truncated"} & table.keys()
    warnings = _time_limit_warnings(str(matched["done"]), terminated, begins) if only_done else ()
    next_obs, incomplete = _next_observations(table, terminated, begins, where)
    log = Transitions.from_arrays(
        table["obs"],
        table["reward"],
        # so that no next observation is required of the incomplete steps
        terminated=terminated | incomplete,
        truncated=truncated,
        episode=episode,
        action=table.get("action"),
        next_observation=next_obs,
        cluster=table.get("cluster"),
        **_probabilities(table, notes),
    )
    if "obs" in names:
        notes.append(f"The text in {matched['obs']!r} names {len(names['obs'])} states, numbered in sorted order.")
    elif log.has_numbered_states:
        notes.append(f"The integers in {matched['obs']!r} are treated as labels of {len(log.observations)} states.")
    if "action" in names:
        notes.append(
            f"The text in {matched['action']!r} names {len(names['action'])} actions, numbered in sorted order: "
            f"{quote_names(names['action'])}."
        )
    entries = tuple(entry for name in columns_of(matched, "obs") for entry in source.entries.get(name, (name,)))
    entries += () if filling is None else filling.indicators
    if len(entries) != math.prod(log.observations.shape[1:]):  # columns of lists: their entries have no names
        entries = ()
    continuity = source.continuity or continuity_of(log, jumps, next_logged=next_obs is not None, filling=filling)
    ids: dict[str, Any] = {name: names.get(field) for field, name in NAMED_FIELDS.items()}
    return replace(
        log, terminated=terminated, notes=tuple(notes), warnings=warnings, source=where, names=entries,
        filling=filling, continuity=continuity, **ids,
    )._frozen()  # fmt: skip


def _read_field(field: str, names: str | tuple[str, ...], source: Table, columns: list[Column]) -> Array:
    """One column as it is, or several columns of numbers concatenated to vectors; adds those of "obs" to `columns`."""
    if isinstance(names, str):
        values = source.read(names)
        if field == "obs":
            columns += _entries_of(names, values, 0, source)
        return values
    parts = [_number_column(field, name, source.read(name), source) for name in names]
    parts = [part[:, None] if part.ndim == 1 else part for part in parts]
    for name, part in zip(names, parts, strict=True):
        if field == "obs":
            columns += _entries_of(name, part, columns[-1].stop if columns else 0, source)
    n = len(parts[0])
    if any(part.ndim != 2 or len(part) != n for part in parts):
        shapes = ", ".join(f"{name!r} {part.shape}" for name, part in zip(names, parts, strict=True))
        raise ValueError(f"The columns of {field} cannot be concatenated: {shapes}. Give columns of equal length.")
    dtype = common_dtype(parts)
    parts = [exact(part, dtype, f"Column {name!r} of {source.where}") for name, part in zip(names, parts, strict=True)]
    masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
    shape = n, sum(part.shape[1] for part in parts)
    empty, concatenate = (np.ma.empty, np.ma.concatenate) if masked else (np.empty, np.concatenate)
    vectors = empty(shape, dtype)
    for start in range(0, n, ROWS_PER_COPY):  # transposed in cache: faster than writing single columns of the matrix
        here = slice(start, start + ROWS_PER_COPY)
        vectors[here] = concatenate([part[here].T for part in parts]).T
    return vectors


def _entries_of(name: str, values: Array, first: int, source: Table) -> list[Column]:
    """The columns of observations that a column of a source gives: one for categories, else one for each number."""
    width = math.prod(values.shape[1:])
    if name in source.entries:
        return [Column(name, first, first + width, categories=True)]
    return [Column(name if width == 1 else f"{name}[{k}]", first + k, first + k + 1) for k in range(width)]


def scan_gaps(source: Table, scan: GapScan | None, limit: int) -> GapScan:
    """Count the gaps in a part of a log, after those of the parts before. limit: as of `GapScan`."""
    columns: list[Column] = []
    fields = [field for field in ("obs", "next_obs") if field in source.matched]
    table = {field: _read_field(field, source.matched[field], source, columns) for field in fields}
    table = {field: _number_column(field, source.matched[field], table[field], source) for field in fields}
    scan = GapScan(columns, limit) if scan is None else scan
    if not are_state_numbers(table["obs"]):
        scan.add(table["obs"], table.get("next_obs"))
    return scan


def _number_ids(table: dict[str, Array], source: Table) -> dict[str, Array]:
    """Replace text in episode, cluster, action, obs and next_obs by numbers; returns the names of those with text."""
    names: dict[str, Array] = {}
    for field, others in (("episode", ()), ("cluster", ()), ("action", ()), ("obs", ("next_obs",))):
        fields = [name for name in (field, *others) if name in table]
        if not fields or not is_text(table[field]):
            continue
        columns = [as_text(table[name], f"Column {source.matched[name]!r} of {source.where}") for name in fields]
        if field in ("obs", "action"):
            what = f"Column {source.matched[field]!r} of {source.where}"
            refuse_numbers_as_text(columns[0], what, source.place, names=field == "action")
        if field == "obs" and source.missing == "flag":
            columns[0] = ["missing" if text is None else text for text in columns[0]]
        names[field], numbered = number_names(columns, source.known.get(field, ()))
        table.update(zip(fields, numbered, strict=True))
    return names


def _number_column(field: str, name: str | tuple[str, ...], values: Array, source: Table) -> Array:
    """The column as numbers in native byte order; missing observations stay masked or NaN."""
    what = f"Column {name!r} of {source.where}"
    if field == "step" and values.dtype.kind in "mM":
        missing, values = np.isnat(values), values.astype(np.int64)  # times sort like numbers
        values = np.ma.array(values, mask=missing) if missing.any() else values
    if values.dtype.hasobject or values.dtype.kind not in "biuf":
        if is_text(values):
            raise refuse_text(field, name, values, source)
        raise ValueError(
            f"{what} holds dtype {values.dtype}, but {field} must be numbers. Convert it, or name another column with "
            f"`columns={{{field!r}: ...}}`."
        )
    if values.ndim == 0 or (values.ndim != 1 and field not in VECTOR_FIELDS and values.shape[1:] != (1,)):
        raise ValueError(f"{what} has shape {values.shape}; {field} must be one number per step.")
    if field not in VECTOR_FIELDS:
        values = values.reshape(len(values))
    if field not in ("obs", "next_obs"):
        values = _refuse_missing(field, values, source.where)
    if field in ("episode", "step", "cluster"):
        values = values.astype(np.int64) if values.dtype.kind == "b" else values
    elif field not in VECTOR_FIELDS and values.dtype.kind in "iu":
        values = exact(values, np.float64, f"{field} in {source.where}")
    return in_native_order(values)


def _refuse_missing(field: str, values: Array, where: str) -> Array:
    """A plain array; raises ValueError if an entry is masked, or if an action or a step is NaN or infinite."""
    missing: Any = np.ma.getmask(values)
    if field in ("action", "step", "episode", "cluster") and values.dtype.kind == "f":
        missing = missing | ~np.isfinite(np.ma.getdata(values))
    if missing is not np.ma.nomask and missing.any():
        rows = missing.reshape(len(missing), -1).any(axis=1)
        raise RowError(
            f"{field} is missing or infinite at", int(rows.argmax()), f"{among(rows)}. Give every row a value: "
            "gaps are filled in observations only.", where=where,
        )  # fmt: skip
    return np.ma.getdata(values)


def _check_lengths(table: dict[str, Array], matched: ColumnMap, where: str) -> None:
    for field, values in table.items():
        if np.ndim(values) == 0:
            raise ValueError(f"{where}: {field} ({matched[field]!r}) is a single value. Give one row per step.")
    n = len(table["obs"])
    for field, values in table.items():
        if len(values) != n:
            raise ValueError(
                f"{where}: {field} ({matched[field]!r}) has {len(values)} rows, but the observations have {n}. "
                "Give one row per step, and the observation after the last step as next_obs."
            )


def _complete_next(table: dict[str, Array]) -> None:
    """Convert obs and next_obs to one dtype, in place, and fill missing next observations with the observation.

    Adds the column "next_obs_missing", True where a next observation has a missing entry.
    """
    obs, next_obs = table["obs"], table.get("next_obs")
    if next_obs is None or next_obs.shape != obs.shape:
        return
    missing = np.ma.getmaskarray(next_obs)
    if next_obs.dtype.kind == "f":
        missing = missing | np.isnan(np.ma.getdata(next_obs))
    next_obs = np.ma.array(np.ma.getdata(next_obs), mask=missing)
    if next_obs.dtype.kind == "f" and obs.dtype.kind in "biu" and (np.trunc(next_obs) == next_obs).all():
        next_obs = exact(next_obs, np.int64, "next_obs")  # integers are often stored as floats where some are missing
    dtype = common_dtype([obs, next_obs])
    obs, next_obs = exact(obs, dtype, "obs"), np.ma.getdata(exact(next_obs, dtype, "next_obs"))
    table["obs"], table["next_obs"] = obs, np.where(missing, obs, next_obs) if missing.any() else next_obs
    rows = np.asarray(missing.any(axis=tuple(range(1, obs.ndim))))
    table["next_obs_missing"] = rows | table.get("next_obs_missing", False)


# ---- order ---------------------------------------------------------------------------------------


def _refuse_ids_of_several_files(episode: Array, source: Table, names: Array | None) -> None:
    """Raise ValueError if an id comes back in another file after other ids: nothing tells if that is one episode."""
    runs = np.flatnonzero(episode_starts(episode))
    runs = runs[np.argsort(episode[runs], kind="stable")]
    file = np.searchsorted(np.cumsum([rows for _, rows in source.files]), runs, side="right")
    again = np.flatnonzero((episode[runs[1:]] == episode[runs[:-1]]) & (file[1:] != file[:-1]))
    if len(again):
        first, later = (source.files[file[again[0] + one]][0] for one in (0, 1))
        number = episode[runs[again[0]]]
        raise ValueError(
            f"Episode {shown(number if names is None else names[number])} is in {first} and, after other episodes, in "
            f"{later}. If ids begin again in every file, number the episodes of all files differently. If it is one "
            "episode, add a column step that numbers its rows, or sort the files by episode."
        )


def _sort_rows(table: dict[str, Array], notes: list[str], episode_names: Array | None) -> dict[str, Array]:
    """Make the steps of an episode contiguous and ordered; episodes keep the order of their first rows."""
    if "episode" not in table:
        return table
    table = {**table, "episode": exact(table["episode"], np.int64, "episode")}
    begins = episode_starts(table["episode"])
    ids = table["episode"][begins]
    if len(np.unique(ids)) == len(ids):  # contiguous already: ids of episodes are sorted, not those of steps
        if "step" not in table:
            return table
        code = np.cumsum(begins)
    else:
        _, first, code = np.unique(table["episode"], return_index=True, return_inverse=True)
        code = np.argsort(np.argsort(first))[code]
    if "step" in table:
        step = numbers("step", table["step"], dtype=None)
        order = np.lexsort((step, code))
        ids = table["episode"] if episode_names is None else episode_names[table["episode"]]
        _refuse_repeated_steps(step[order], code[order], ids[order])
        note = "Rows were sorted by episode and step."
    else:
        order = np.argsort(code, kind="stable")
        note = "Rows of different episodes were interleaved; they were grouped by episode, in the order of the rows."
    if (order == np.arange(len(order))).all():
        return table
    check_observations("observation", table["obs"])  # before sorting, so that errors name the row of the file
    numbers("reward", table["reward"])
    notes.append(note)
    return {field: values[order] for field, values in table.items()}


def _refuse_repeated_steps(step: Array, code: Array, episode: Array) -> None:
    """Refuse repeated step numbers in an episode; the arrays are sorted."""
    if (row := first_row((code[1:] == code[:-1]) & (step[1:] == step[:-1]))) is not None:
        raise ValueError(
            f"Episode {shown(episode[row])} has two rows with step {step[row]}. Remove one, or give different episodes "
            "different numbers."
        )


def _check_steps_increase(table: dict[str, Array], ended: Array) -> None:
    """Without episode numbers rows cannot be sorted, so step numbers must increase until an episode ends."""
    if "step" not in table:
        return
    step = numbers("step", table["step"], dtype=None)
    if (row := first_row((step[1:] <= step[:-1]) & ~ended[:-1])) is not None:
        raise RowError(
            f"step goes from {step[row]} to {step[row + 1]} at", row + 1, ", but no flag marks the end of an episode "
            "there. Add an episode column (rows are then sorted by it), or mark the end as truncated or terminated.",
        )  # fmt: skip


# ---- ends ----------------------------------------------------------------------------------------


def check_ends(matched: ColumnMap, where: str) -> None:
    """Raise ValueError if no column marks the ends of episodes."""
    if not matched.keys() & END_FIELDS:
        raise ValueError(
            f"No column of {where} marks how episodes end. Add a column terminated (1 where no reward can follow the "
            "step), and truncated where an episode was cut off; for one continuing stream, set terminated to 0 "
            "everywhere."
        )


def _episode_ends(table: dict[str, Array], matched: ColumnMap, notes: list[str], where: str) -> tuple[Array, Array]:
    """Flags terminated and truncated, from the columns terminated, truncated and done that are present."""
    check_ends(matched, where)
    n = len(table["obs"])
    given = {name: flags(name, table[name], n) for name in END_FIELDS if name in table}
    terminated = given.get("terminated", np.zeros(n, bool))
    truncated = given.get("truncated", np.zeros(n, bool))
    if "done" in given:
        done = given["done"]
        conflict = np.zeros(n, bool)
        if "terminated" in given:
            conflict = terminated & ~done
            if "truncated" in given:
                conflict |= done & ~(terminated | truncated)
            truncated = truncated | (done & ~terminated)
        else:
            terminated = done & ~truncated
        if (row := first_row(conflict)) is not None:
            raise RowError(
                "done and terminated/truncated disagree at", row, ". Correct one of them, or ignore done with "
                "`columns={'done': None}`.", where=where,
            )  # fmt: skip
        if len(given) == 1:
            notes.append(
                f"{matched['done']!r} is treated as terminated: the value after the {int(done.sum())} steps it marks "
                "is 0. If some episodes were only cut off (by a time limit), add a column truncated."
            )
    if "truncated" not in given and len(given) == 1 and "episode" not in table:
        truncated = _infer_truncation(table, terminated, notes)
    return terminated, truncated


def _time_limit_warnings(name: str, done: Array, begins: Array) -> tuple[str, ...]:
    """A warning if most ends come after the same number of steps, and none later: done alone hides a time limit."""
    lengths = step_numbers(begins)[done] + 1
    longest = int(lengths.max(initial=1))
    count = int((lengths == longest).sum())
    # equal lengths of fewer than 10 episodes do not look like a time limit
    if longest == 1 or len(lengths) < 10 or 2 * count <= len(lengths):
        return ()
    return (
        f"{count} of the {len(lengths)} episodes that {name!r} ends have {longest} steps, and none has more, which "
        "looks like a time limit. Their ends are treated as terminations, so the value after them is taken as 0. If it "
        "is a time limit, mark these steps in a column truncated, and give the observation after them as next_obs.",
    )


def _end_at_files(source: Table, terminated: Array, truncated: Array, notes: list[str]) -> None:
    """Truncate an episode at the last row of each file; changes `truncated` in place."""
    last = np.cumsum([rows for _, rows in source.files]) - 1
    cut = last[:-1][~(terminated | truncated)[last[:-1]]]
    truncated[last] |= ~terminated[last]
    if len(cut):
        notes.append(
            f"No column numbers the episodes, so the episode at the end of a file is treated as truncated there "
            f"({len(cut)} files). If episodes continue in the next file, add a column episode."
        )


def _infer_truncation(table: dict[str, Array], terminated: Array, notes: list[str]) -> Array:
    """Truncation flags where no column has them: the next observation differs from the observation of the next row."""
    truncated = np.zeros(len(terminated), bool)
    if "next_obs" not in table or table["next_obs"].shape != table["obs"].shape:
        if "done" not in table:  # done marks every end
            notes.append(
                "Episodes are assumed to end only where a step terminated. If some were cut off (by a time limit), add "
                "a column truncated or episode; otherwise the steps before and after a cut are treated as consecutive."
            )
        return truncated
    for start in range(0, len(truncated) - 1, ROWS_PER_CHECK):
        next_obs = table["next_obs"][:-1][start : start + ROWS_PER_CHECK]
        equal = next_obs == table["obs"][1:][start : start + ROWS_PER_CHECK]
        truncated[start : start + len(next_obs)] = ~equal.all(axis=tuple(range(1, equal.ndim)))
    truncated[:-1] |= table["next_obs_missing"][:-1]
    truncated &= ~terminated
    if truncated.any():
        notes.append(
            f"At {int(truncated.sum())} steps the next observation differs from the observation of the next row: "
            "episodes are treated as truncated there."
        )
    return truncated


def _next_observations(
    table: dict[str, Array], terminated: Array, begins: Array, where: str
) -> tuple[Array | None, Array]:
    """Next observations (None: those of the next row), and the last steps that need one but have none."""
    last, needed = last_steps(begins), ~terminated
    next_obs = table.get("next_obs")
    if next_obs is None:
        return None, last & needed
    missing = table.get("next_obs_missing", np.zeros(len(begins), bool))
    if (row := first_row(missing & needed & ~last)) is not None:
        raise RowError(
            "next_obs is missing at", row, ", in the middle of an episode. Fill it, or ignore the "
            "column with `columns={'next_obs': None}`: the observation of the next row is then used.", "step", where,
        )  # fmt: skip
    return next_obs, last & missing & needed


def _without_incomplete(log: Transitions) -> Transitions:
    """Drop last steps without a next observation; the step before each becomes the last one, truncated."""
    incomplete, begins = (log.next < 0) & ~log.terminated, episode_starts(log.episode)
    if not incomplete.any():
        return log
    if incomplete.all():
        raise ValueError("No step is left: none terminated and none has a next observation. Add next_obs columns.")
    previous = np.flatnonzero(incomplete & ~begins) - 1
    truncated = log.truncated.copy()
    truncated[previous] = True
    continuity = log.continuity + Continuity(cut=int(incomplete.sum()), cut_rewards=Spread.of(log.reward[incomplete]))
    return replace(log, truncated=truncated, continuity=continuity)[~incomplete]


# ---- probabilities -------------------------------------------------------------------------------


def _probabilities(table: dict[str, Array], notes: list[str]) -> dict[str, Any]:
    """behaviour_prob, target_prob and ratio, from probabilities or their logarithms.

    The ratio of two log-probabilities is exp of their difference, which stays finite where the probabilities underflow.
    """
    n = len(table["obs"])
    probabilities: dict[str, Array | None] = {
        name: table.get(name) for name in ("behaviour_prob", "target_prob", "ratio")
    }
    logs = {}
    for policy in ("behaviour", "target"):
        name = f"{policy}_log_prob"
        if name not in table:
            continue
        if probabilities[f"{policy}_prob"] is not None:
            raise ValueError(f"Both {policy}_prob and {name} are given. Ignore one with `columns={{{name!r}: None}}`.")
        values = table[name]
        zero = (values == -np.inf) if policy == "target" else np.zeros(n, bool)  # only a target may have probability 0
        logs[policy] = np.where(zero, -np.inf, numbers(name, np.where(zero, 0, values), length=n))
        with np.errstate(over="ignore"):
            probabilities[f"{policy}_prob"] = np.exp(logs[policy])
    if len(logs) == 2 and probabilities["ratio"] is None:
        with np.errstate(over="ignore"):
            probabilities["ratio"], probabilities["target_prob"] = np.exp(logs["target"] - logs["behaviour"]), None
    behaviour = probabilities["behaviour_prob"]
    if "behaviour" in logs and behaviour is not None and not (np.isfinite(behaviour) & (behaviour > 0)).all():
        if probabilities["ratio"] is None:
            row = int(np.flatnonzero(~(np.isfinite(behaviour) & (behaviour > 0)))[0])
            raise RowError(
                f"behaviour_log_prob is {logs['behaviour'][row]:g} at", row, "; its exponential underflows or "
                "overflows. Give target_log_prob too, or ratio.", "step",
            )  # fmt: skip
        probabilities["behaviour_prob"] = None
        notes.append(
            "Behaviour probabilities were dropped, because some are too small or too large for floating point; the "
            "ratios were computed without them."
        )
    return probabilities
