"""Named columns into a log: how episodes end, what order the steps have, what is missing, said in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from valuefit.data.columns import VECTORS, Choice
from valuefit.data.transitions import Transitions
from valuefit.data.validation import check_observations, flags, numbers
from valuefit.typing import Array

BLOCK = 4096  # rows that are put side by side at a time, so that writing them stays in cache


def build(chosen: Choice, read: Callable[[str], Array], where: str) -> Transitions:
    """The log of the chosen columns; what had to be assumed or left out stands in its notes.

    Rows are sorted by episode and step where they are out of order. Without `episode`, episodes are read off the end
    flags. `done` alone counts as terminated. The last step of an episode that did not terminate and has no
    next observation is left out: nothing says where it led.
    """
    notes: list[str] = []
    table = {ours: _gather(ours, names, read, where) for ours, names in chosen.items()}
    _same_length(table, chosen, where)
    table = _in_order(table, notes)
    n = len(table["obs"])
    terminated, truncated = _ends(table, chosen, notes, where)
    ended = terminated | truncated
    episode = table.get("episode")
    if episode is None:
        episode = np.concatenate(([0], np.cumsum(ended[:-1]))) if n else np.zeros(0, int)
        _check_steps(table, ended)
    begins = np.ones(n, bool)
    begins[1:] = episode[1:] != episode[:-1]
    after, lost = _after(table, terminated, begins, where)
    log = Transitions.from_arrays(
        table["obs"],
        table["reward"],
        terminated=terminated | lost,  # so that nothing is looked for after a lost step, which then goes
        truncated=truncated,
        episode=episode,
        action=table.get("action"),
        next_observation=after,
        **_probabilities(table, notes),
    )
    if lost.any():
        log = _without(log, lost, begins, notes)
    if log.has_numbered_states:
        notes.append(f"Whole numbers in {chosen['obs']!r} are taken as names of {len(log.observations)} states.")
    names = (chosen["obs"],) if isinstance(chosen["obs"], str) else chosen["obs"]
    if len(names) != math.prod(log.observations.shape[1:]):  # columns of lists: their entries have no names
        names = ()
    return replace(log, notes=tuple(notes), source=where, names=names)


def _gather(ours: str, names: str | tuple[str, ...], read: Callable[[str], Array], where: str) -> Array:
    """One column, or several side by side."""
    if isinstance(names, str):
        return _numeric(ours, names, read(names), where)
    parts = [_numeric(ours, name, read(name), where) for name in names]
    parts = [part[:, None] if part.ndim == 1 else part for part in parts]
    n = len(parts[0])
    if any(part.ndim != 2 or len(part) != n for part in parts):
        shapes = ", ".join(f"{name!r} {part.shape}" for name, part in zip(names, parts, strict=True))
        raise ValueError(f"The columns of {ours} do not fit side by side: {shapes}. Give columns of equal length.")
    stops = np.cumsum([part.shape[1] for part in parts])
    together = np.empty((n, stops[-1]), np.result_type(*parts))
    for start in range(0, n, BLOCK):
        for stop, part in zip(stops, parts, strict=True):
            together[start : start + BLOCK, stop - part.shape[1] : stop] = part[start : start + BLOCK]
    return together


def _numeric(ours: str, name: str, values: Array, where: str) -> Array:
    """The column as numbers in this machine's byte order."""
    if ours == "step" and values.dtype.kind in "mM":
        values = values.astype(np.int64)  # moments sort like numbers
    if values.dtype.hasobject or values.dtype.kind not in "biuf":
        kind = "text" if values.dtype.kind in "OSUT" else f"dtype {values.dtype}"
        raise ValueError(
            f"Column {name!r} of {where} holds {kind}, but {ours} must be numbers. Convert it (for names, number "
            f"them), or name another column with columns={{{ours!r}: ...}}."
        )
    if values.ndim == 0 or (values.ndim != 1 and ours not in VECTORS and values.shape[1:] != (1,)):
        raise ValueError(f"Column {name!r} of {where} has shape {values.shape}; {ours} is one number a step.")
    if ours not in VECTORS:
        values = values.reshape(len(values))
    if ours == "action" and values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0, 0])
        raise ValueError(f"action is missing or infinite at row {row} of {where}. Remove that step or fill the gap.")
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _same_length(table: dict[str, Array], chosen: Choice, where: str) -> None:
    n = len(table["obs"])
    for ours, values in table.items():
        if len(values) != n:
            raise ValueError(
                f"{where}: {ours} ({chosen[ours]!r}) has {len(values)} rows, but the observations have {n}. "
                "Give one row a step, and what was observed after the last step as next_obs."
            )


# ---- order ---------------------------------------------------------------------------------------


def _in_order(table: dict[str, Array], notes: list[str]) -> dict[str, Array]:
    """Steps of an episode together and in order; episodes in the order in which they first appear."""
    if "episode" not in table:
        return table
    table = {**table, "episode": numbers("episode", table["episode"], dtype=np.int64)}
    _, first, code = np.unique(table["episode"], return_index=True, return_inverse=True)
    code = np.argsort(np.argsort(first))[code]
    if "step" in table:
        step = numbers("step", table["step"], dtype=None)
        order = np.lexsort((step, code))
        _check_sorted(step[order], code[order], table["episode"][order], notes)
        said = "Rows were sorted by episode and step."
    else:
        order = np.argsort(code, kind="stable")
        said = "Rows of different episodes were mixed; they were grouped by episode, in the order of the rows."
    if (order == np.arange(len(order))).all():
        return table
    check_observations("observation", table["obs"])  # before sorting: messages should name the row of the file
    numbers("reward", table["reward"])
    notes.append(said)
    return {ours: values[order] for ours, values in table.items()}


def _check_sorted(step: Array, code: Array, episode: Array, notes: list[str]) -> None:
    inside = code[1:] == code[:-1]
    ahead = (step[1:] - step[:-1])[inside]
    if (ahead == 0).any():
        where = int(np.flatnonzero(inside & (step[1:] == step[:-1]))[0])
        raise ValueError(
            f"Episode {episode[where]} has two rows with step {step[where]}. Remove one, or give episodes that "
            "are not the same different numbers."
        )
    if step.dtype.kind in "iu" and len(ahead) and ahead.min() == 1 < ahead.max():
        notes.append(
            f"Step numbers jump at {int((ahead > 1).sum())} places inside episodes: the next step on record is taken "
            "as the one that followed."
        )


def _check_steps(table: dict[str, Array], ended: Array) -> None:
    """Without episode ids rows cannot be sorted, so step numbers must rise until an end."""
    if "step" not in table:
        return
    step = numbers("step", table["step"], dtype=None)
    back = (step[1:] <= step[:-1]) & ~ended[:-1]
    if back.any():
        row = int(np.flatnonzero(back)[0]) + 1
        raise ValueError(
            f"step goes from {step[row - 1]} to {step[row]} at row {row}, but nothing says that an episode ended "
            "there. Add an episode column (rows are then sorted by it), or flag the end as truncated or terminated."
        )


# ---- ends ----------------------------------------------------------------------------------------


def _ends(table: dict[str, Array], chosen: Choice, notes: list[str], where: str) -> tuple[Array, Array]:
    """Which steps terminated and which were cut off."""
    n = len(table["obs"])
    given = {name: flags(name, table[name], n) for name in ("terminated", "truncated", "done") if name in table}
    if not given:
        raise ValueError(
            f"Nothing in {where} says how episodes end. Add a column terminated (1 where no value follows the step), "
            "and truncated where an episode was cut off; for a single stream without end, terminated is 0 everywhere."
        )
    terminated = given.get("terminated", np.zeros(n, bool))
    truncated = given.get("truncated", np.zeros(n, bool))
    if "done" in given:
        done = given["done"]
        odd = np.zeros(n, bool)
        if "terminated" in given:
            odd = terminated & ~done
            if "truncated" in given:
                odd |= done & ~(terminated | truncated)
            truncated = truncated | (done & ~terminated)
        else:
            terminated = done & ~truncated
        if odd.any():
            raise ValueError(
                f"done and terminated/truncated disagree at row {int(np.flatnonzero(odd)[0])} of {where}. Correct one "
                "of them, or leave done out with columns={'done': None}."
            )
        if len(given) == 1:
            notes.append(
                f"{chosen['done']!r} counts as terminated: no value follows the {int(done.sum())} steps it marks. "
                "If some were only cut off (a time limit), add a column truncated."
            )
    if "truncated" not in given and len(given) == 1 and "episode" not in table:
        truncated = _jumps(table, terminated, notes)
    return terminated, truncated


def _jumps(table: dict[str, Array], terminated: Array, notes: list[str]) -> Array:
    """Where nothing marks cut episodes: a step that led elsewhere than the next row begins was the last one."""
    cut = np.zeros(len(terminated), bool)
    if "next_obs" not in table or table["next_obs"].shape != table["obs"].shape:
        if "done" not in table:  # done marks every end
            notes.append(
                "Episodes end only where a step terminated. If some were cut off (a time limit), add a column "
                "truncated or episode: as it is, the steps before and after a cut count as neighbours."
            )
        return cut
    for start in range(0, len(cut) - 1, 65536):
        after = table["next_obs"][:-1][start : start + 65536]
        equal = after == table["obs"][1:][start : start + 65536]
        cut[start : start + len(after)] = ~equal.all(axis=tuple(range(1, equal.ndim)))
    cut &= ~terminated
    if cut.any():
        notes.append(
            f"{int(cut.sum())} steps led to an observation that is not the one of the next row: "
            "episodes were taken as cut off there (truncated)."
        )
    return cut


def _after(table: dict[str, Array], terminated: Array, begins: Array, where: str) -> tuple[Array | None, Array]:
    """Observations after each step (None: those of the next row), and the steps for which there is none."""
    last = np.ones(len(begins), bool)
    last[:-1] = begins[1:]
    unknown = ~terminated
    after = table.get("next_obs")
    if after is None:
        lost = last & unknown
    else:
        if after.dtype.kind != "f" or after.shape != table["obs"].shape:
            return after, np.zeros(len(begins), bool)
        missing = np.isnan(after).any(axis=tuple(range(1, after.ndim)))
        lost = last & missing & unknown
        gap = missing & unknown & ~last
        if gap.any():
            raise ValueError(
                f"next_obs is missing at step {int(np.flatnonzero(gap)[0])} of {where}, in the middle of an episode. "
                "Fill it, or leave it out altogether with columns={'next_obs': None}: the next row is then taken."
            )
        if table["obs"].dtype.kind in "iu":  # whole numbers came as floats because some were missing
            whole = np.where(np.isnan(after), table["obs"], after)
            if (whole % 1 == 0).all():
                after = whole.astype(table["obs"].dtype)
    return after, lost


def _without(log: Transitions, lost: Array, begins: Array, notes: list[str]) -> Transitions:
    """Leave out last steps that lead nowhere; the step before them becomes the last, cut off."""
    if lost.all():
        raise ValueError("No step is left: none terminated and none has a next observation. Add next_obs columns.")
    before = np.flatnonzero(lost & ~begins) - 1
    truncated = log.truncated.copy()
    truncated[before] = True
    count, whole = int(lost.sum()), int((lost & begins).sum())
    notes.append(
        f"Left out the last step of {count} episodes{f' ({whole} of one step only)' if whole else ''}: "
        "no termination there, and nothing says what was observed next. Add next_obs columns to keep them."
    )
    return replace(log, truncated=truncated)[~lost]


# ---- probabilities -------------------------------------------------------------------------------


def _probabilities(table: dict[str, Array], notes: list[str]) -> dict[str, Array | None]:
    """behaviour_prob, target_prob and ratio; logarithms are undone, the ratio of two in one step."""
    n = len(table["obs"])
    plain: dict[str, Array | None] = {name: table.get(name) for name in ("behaviour_prob", "target_prob", "ratio")}
    logs = {}
    for who in ("behaviour", "target"):
        name = f"{who}_log_prob"
        if name not in table:
            continue
        if plain[f"{who}_prob"] is not None:
            raise ValueError(f"Both {who}_prob and {name} are given. Leave one out with columns={{{name!r}: None}}.")
        values = table[name]
        never = (values == -np.inf) if who == "target" else np.zeros(n, bool)  # a target policy may never do it
        logs[who] = np.where(never, -np.inf, numbers(name, np.where(never, 0, values), length=n))
        with np.errstate(over="ignore"):
            plain[f"{who}_prob"] = np.exp(logs[who])
    if len(logs) == 2 and plain["ratio"] is None:
        with np.errstate(over="ignore"):
            plain["ratio"], plain["target_prob"] = np.exp(logs["target"] - logs["behaviour"]), None
    behaviour = plain["behaviour_prob"]
    if "behaviour" in logs and behaviour is not None and not (np.isfinite(behaviour) & (behaviour > 0)).all():
        if plain["ratio"] is None:
            row = int(np.flatnonzero(~(np.isfinite(behaviour) & (behaviour > 0)))[0])
            raise ValueError(
                f"behaviour_log_prob is {logs['behaviour'][row]:g} at step {row}, whose exponential is no positive "
                "number. Give target_log_prob too, or ratio."
            )
        plain["behaviour_prob"] = None
        notes.append(
            "Behaviour probabilities are too small or large to keep; the ratios were taken from their logarithms."
        )
    return plain
