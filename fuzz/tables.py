"""A correct log as a table of Python values, and mutations that keep it a table: types, nulls, ids, order, columns."""

from __future__ import annotations

import datetime
import uuid
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np

from fuzz.mutators import Rng, chance, number, pick
from fuzz.reference import Columns


def base_table(rng: Rng) -> Columns:
    """A correct log of a few short episodes, as columns of Python values; which columns it has is random."""
    lengths = rng.integers(1, 7, int(rng.integers(2, 6)))
    labels, width = chance(rng, 0.3), int(rng.integers(1, 4))
    columns: Columns = {}
    names = ["obs"] if labels else [f"obs_{i}" for i in range(width)]
    for name in names:
        columns[name] = []
    wanted = {
        "next_obs": 0.5, "reward": 1.0, "terminated": 1.0, "truncated": 0.6, "episode": 0.8, "step": 0.5,
        "action": 0.4, "ratio": 0.2,
    }  # fmt: skip
    present = [name for name, probability in wanted.items() if chance(rng, probability)]
    for name in present:
        for column in [n.replace("obs", "next_obs") for n in names] if name == "next_obs" else [name]:
            columns[column] = []
    for episode, length in enumerate(lengths):
        path = rng.integers(0, 5, (length + 1, 1)) if labels else np.round(rng.normal(size=(length + 1, width)), 3)
        end = "truncated" if "truncated" in present and episode % 2 else "terminated"
        for t in range(length):
            for i, name in enumerate(names):
                columns[name].append(path[t, i].item())
                if "next_obs" in present:
                    columns[name.replace("obs", "next_obs")].append(path[t + 1, i].item())
            values = {"reward": round(float(rng.normal()), 3), "episode": episode, "step": t,
            "action": int(rng.integers(3)),
                      "ratio": round(float(rng.uniform(0.5, 1.5)), 3), "terminated": False,
                      "truncated": False}  # fmt: skip
            if t == length - 1:
                values[end] = True
            for name in present:
                if name in values:
                    columns[name].append(values[name])
    return columns


TABLE_MUTATIONS: list[Callable[[Rng, Columns], None]] = []


def table_mutation(function: Callable[[Rng, Columns], None]) -> Callable[[Rng, Columns], None]:
    TABLE_MUTATIONS.append(function)
    return function


def mutate_table(rng: Rng, columns: Columns) -> None:
    """Apply some of TABLE_MUTATIONS in place; none in one of ten cases."""
    for _ in range(int(rng.geometric(0.5)) if chance(rng, 0.9) else 0):
        if columns:
            pick(rng, TABLE_MUTATIONS)(rng, columns)


def _rows(columns: Columns) -> int:
    return min(map(len, columns.values()), default=0)


def _keep_rows(columns: Columns, rows: Sequence[int]) -> None:
    for name, values in columns.items():
        columns[name] = [values[row] for row in rows]


@table_mutation
def put_number(rng: Rng, columns: Columns) -> None:
    values = columns[pick(rng, list(columns))]
    if values:
        values[int(rng.integers(len(values)))] = number(rng)


@table_mutation
def put_anything(rng: Rng, columns: Columns) -> None:
    values = columns[pick(rng, list(columns))]
    odd = pick(
        rng, [None, None, True, "x", "", [1.0], [None], [], [[1.0]], {"a": 1}, "1", b"x", datetime.datetime(2021, 1, 1)]
    )
    if values:
        values[int(rng.integers(len(values)))] = odd


@table_mutation
def fill_column(rng: Rng, columns: Columns) -> None:
    name = pick(rng, list(columns))
    columns[name] = [pick(rng, [None, 0, 1, True, False, "a", number(rng)])] * len(columns[name])


@table_mutation
def scale_column(rng: Rng, columns: Columns) -> None:
    name = pick(rng, list(columns))
    factor = pick(rng, [0, -1, 2, 1e-3, 1e-6, 1e-55, 1e-60, 1e55, 1e60, 1e150, 1e300, 2**60, 2**53, 0.5])
    columns[name] = [value * factor if isinstance(value, int | float) else value for value in columns[name]]


@table_mutation
def shift_column(rng: Rng, columns: Columns) -> None:
    name = pick(rng, list(columns))
    offset = pick(rng, [1, -1, -100, 250, 2**31, 2**53, 2**60, -(2**62), 2**63, 0.5, 1e16])
    columns[name] = [value + offset if isinstance(value, int | float) else value for value in columns[name]]


@table_mutation
def convert_column(rng: Rng, columns: Columns) -> None:
    name = pick(rng, list(columns))
    convert = pick(
        rng,
        [
            float,
            str,
            bool,
            lambda v: [v],
            lambda v: [bool(v)],
            Decimal,
            lambda v: datetime.datetime(2021, 1, 1 + int(v) % 28),
        ],
    )
    try:
        columns[name] = [value if value is None else convert(value) for value in columns[name]]
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return


@table_mutation
def huge_ids(rng: Rng, columns: Columns) -> None:
    name = pick(rng, ["episode", "obs", "step"])
    if name in columns:
        steps = pick(rng, [1, 3, 1000])
        for column in (name, f"next_{name}"):
            if column in columns:
                columns[column] = [2**60 + steps * v if isinstance(v, int) else v for v in columns[column]]


@table_mutation
def text_ids(rng: Rng, columns: Columns) -> None:
    if "episode" in columns:
        columns["episode"] = [str(uuid.UUID(int=zlib.crc32(repr(v).encode()))) for v in columns["episode"]]


@table_mutation
def terminal_nulls(rng: Rng, columns: Columns) -> None:
    """No next observation where an episode terminated, which many writers do."""
    ends = columns.get("terminated", [])
    for name in columns:
        if ends and name.startswith("next_obs") and len(ends) == len(columns[name]):
            columns[name] = [None if end is True else v for v, end in zip(columns[name], ends, strict=True)]


@table_mutation
def narrow_states(rng: Rng, columns: Columns) -> None:
    """A state after a step that does not fit the smallest integer type of the others, next to missing ones."""
    after = columns.get("next_obs", [])
    if after and isinstance(after[0], int):
        terminal_nulls(rng, columns)
        columns["next_obs"] = [v if v is None else pick(rng, [v, v, 258, 2**31 + 2]) for v in columns["next_obs"]]


@table_mutation
def vector_column(rng: Rng, columns: Columns) -> None:
    """Observations as one column of lists."""
    for name in ("obs", "next_obs"):
        parts = [column for column in columns if column.startswith(f"{name}_")]
        if parts:
            columns[name] = [list(row) for row in zip(*(columns.pop(part) for part in parts), strict=False)]


@table_mutation
def ragged(rng: Rng, columns: Columns) -> None:
    for values in columns.values():
        if values and isinstance(values[0], list) and values[0]:
            values[int(rng.integers(len(values)))] = pick(rng, [[], [1.0], [1.0] * 5, None, [None, 1.0]])


@table_mutation
def shuffle_rows(rng: Rng, columns: Columns) -> None:
    _keep_rows(columns, rng.permutation(_rows(columns)).tolist())


@table_mutation
def repeat_or_drop_rows(rng: Rng, columns: Columns) -> None:
    n = _rows(columns)
    if n:
        few = [int(row) for row in rng.integers(n, size=int(rng.integers(1, 4)))]
        everything = list(range(n))
        _keep_rows(
            columns, pick(rng, [everything + few, [r for r in everything if r not in few], few[:1], [], everything * 2])
        )


@table_mutation
def drop_column(rng: Rng, columns: Columns) -> None:
    del columns[pick(rng, list(columns))]


@table_mutation
def rename_column(rng: Rng, columns: Columns) -> None:
    name = pick(rng, list(columns))
    others = ["done", "dones", "terminals", "timeouts", "t", "rewards", "episode_id", "observations", "target_prob",
        "behaviour_prob",
              "behaviour_log_prob", "", "x" * 400, "a\nb", name.upper(), name + "0", "obs_99999999999",
              "é"]  # fmt: skip
    columns[pick(rng, others)] = columns.pop(name)


@table_mutation
def done_column(rng: Rng, columns: Columns) -> None:
    if "terminated" in columns and "truncated" not in columns:
        columns["done"] = columns.pop("terminated")


@table_mutation
def extra_column(rng: Rng, columns: Columns) -> None:
    name = pick(
        rng,
        [
            "done",
            "note",
            "behaviour_prob",
            "target_prob",
            "behaviour_log_prob",
            "target_log_prob",
            "ratio",
            "step",
            "obs",
        ],
    )
    columns.setdefault(name, [pick(rng, [0.5, True, "text", 0, -1.0])] * _rows(columns))
