"""Logs in memory and in Parquet files, and what all formats share: a comparison with a plain read and exact LSTD."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet

import valuefit as vf
from fuzz.mutators import Rng, chance, mutate_array, mutate_bytes, pick, scalar
from fuzz.outcome import RIGHT, Refusal, ask, expect
from fuzz.reference import Columns, Invalid, Log, Unknown, check_solution, compare_log, feature_rows, read_log
from fuzz.runner import Target
from fuzz.tables import base_table, mutate_table
from valuefit.data import joining, shards

LIMIT = 256 << 20  # bytes, the `limit` of `load`: the mutated files hold a few kilobytes
MAX_FEATURES = 8  # of problems that are also solved in rational numbers
EXACT_SOLVERS = ("auto", "lstd", "krylov", "recursive-lstd")


def check_load(rng: Rng, source: Any, plain: Callable[[], Columns], *, damaged: bool = False) -> str | None:
    """Load a log; compare its steps, and sometimes a solve, with those that the plain read of the source means.

    damaged: whether its bytes were changed; then it may be refused, though the library reads it.
    """
    try:
        log = ask(vf.load, source, limit=LIMIT)
    except Refusal as refusal:
        expected = None if damaged else _expected(plain)
        valid = isinstance(expected, Log) and expected.exact
        expect(not valid, f"refused a valid log: {str(refusal)[:300]}")
        raise
    expected = _expected(plain)
    expect(not isinstance(expected, str), f"loaded a log in which {expected}")
    if not isinstance(expected, Log):
        return None
    compare_log(log, expected)
    if chance(rng, 0.3):
        check_evaluate(rng, log, expected)
    return RIGHT


def _expected(plain: Callable[[], Columns]) -> Log | str | None:
    """The steps of a plain read, or why it must be refused; None where the library or the reference cannot tell."""
    try:
        return read_log(plain())
    except Invalid as why:
        return str(why)
    except Exception:  # of any library, on a damaged file
        return None


def check_evaluate(rng: Rng, log: vf.Transitions, expected: Log) -> str | None:
    """Evaluate a log and compare the weights with exact LSTD and the policy value with the weights."""
    options = {"discount": pick(rng, [0.0, 0.5, 0.9, 0.99]), "trace": pick(rng, [0.0, 0.0, 0.7, 1.0])}
    options["ridge"] = pick(rng, [0.0, 0.0, 0.01])
    features, tol = "one-hot" if expected.labels else "identity", 1e-6
    try:
        done = ask(lambda: vf.evaluate(log, features=features, solver=pick(rng, EXACT_SOLVERS), tol=tol, **options))
    except Refusal:
        return None
    theta = done.result.theta.tolist()
    estimate = done.policy_value.estimate
    expect(np.isfinite(estimate), f"the policy value is {estimate}")
    try:
        rows, _, used = feature_rows(expected, len(theta))
        if len(used) > MAX_FEATURES:
            return None
        starts = [rows[t] for t, s in enumerate(expected.steps) if t == 0 or expected.steps[t - 1].episode != s.episode]
        terms = [theta[j] * float(x) / len(starts) for row in starts for j, x in zip(used, row, strict=True)]
        error = abs(sum(terms) - estimate)
        expect(error <= 1e-9 * sum(map(abs, terms)), f"the policy value is {estimate}, the weights give {sum(terms)}")
        check_solution(expected, done.result, tol, **options)
    except Unknown:
        return None
    return RIGHT if done.result.status == "converged" else None


# ---- Arrow: Parquet files and tables in memory ---------------------------------------------------------

ARROW_TYPES = [
    pyarrow.int8(), pyarrow.uint8(), pyarrow.int16(), pyarrow.int32(), pyarrow.int64(), pyarrow.uint64(),
    pyarrow.float16(),
    pyarrow.float32(), pyarrow.float64(), pyarrow.bool_(), pyarrow.decimal128(20, 3), pyarrow.timestamp("us"),
    pyarrow.string(),
    pyarrow.dictionary(pyarrow.int8(), pyarrow.int64()), pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
]  # fmt: skip
LISTS = [pyarrow.list_, pyarrow.large_list, lambda kind: pyarrow.list_(kind, 2)]


def arrow_table(rng: Rng, columns: Columns) -> Any:
    """The table, with other Arrow types for a few columns that admit them."""
    arrays = {}
    narrow = chance(rng, 0.3)
    for name, values in columns.items():
        kind = pick(rng, ARROW_TYPES) if chance(rng, 0.15) else None
        known = [value for value in values if value is not None]
        if any(isinstance(value, list) for value in known):
            kind = None if kind is None else pick(rng, LISTS)(kind)
        elif narrow and known and all(type(value) is int and 0 <= value < 2**63 for value in known):
            kind = pyarrow.from_numpy_dtype(np.min_scalar_type(max(known)))
        texts = [None if value is None else str(value) for value in values]
        for attempt, given in ((kind, values), (None, values), (pyarrow.string(), texts)):
            try:
                arrays[name] = pyarrow.array(given, attempt)
                break
            except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
                continue
    length = min(map(len, arrays.values()), default=0)
    return pyarrow.table({name: array[:length] for name, array in arrays.items()})


def plain_arrow(table: Any) -> Columns:
    if len(set(table.column_names)) < len(table.column_names):
        raise Unknown
    return {name: table[name].to_pylist() for name in table.column_names}


def mutated_parquet(rng: Rng, path: Path) -> bool:
    """Write a mutated file; returns whether its bytes were changed after it was written."""
    columns = base_table(rng)
    mutate_table(rng, columns)
    table = arrow_table(rng, columns)
    stream = io.BytesIO()
    options = {"row_group_size": int(rng.integers(1, 30)), "compression": pick(rng, ["none", "snappy", "zstd", "gzip"])}
    try:
        pyarrow.parquet.write_table(table, stream, use_dictionary=chance(rng, 0.5), **options)
    except (pyarrow.ArrowException, OSError):
        pyarrow.parquet.write_table(pyarrow.table(base_table(rng)), stream)
    data = stream.getvalue()
    damaged = chance(rng, 0.5)
    if damaged:
        footer = int.from_bytes(data[-8:-4], "little")
        at = len(data) - 8 - footer if chance(rng, 0.8) else 0  # the metadata are read first
        data = data[:at] + mutate_bytes(rng, data[at:])
    path.write_bytes(data)
    return damaged


def parquet_case(rng: Rng, folder: Path) -> str | None:
    path = folder / "log.parquet"
    damaged = mutated_parquet(rng, path)
    return check_load(
        rng, path, lambda: plain_arrow(pyarrow.parquet.read_table(path, use_threads=False)), damaged=damaged
    )


def stream_case(rng: Rng, folder: Path) -> str | None:
    """A mutated Parquet file in shards has the steps that it has in memory."""
    path = folder / "log.parquet"
    mutated_parquet(rng, path)
    shards.MIN_SHARD_STEPS = int(rng.integers(1, 30))
    check_shards(path)
    return RIGHT


def check_shards(path: Path) -> None:
    """The steps of a log that is opened in shards are those that it has in memory."""
    opened = ask(lambda: vf.load(path, memory="stream", limit=1))
    parts = [ask(shard.read) for shard in opened.shards]
    joined = ask(joining.join_logs, parts)
    try:
        whole = vf.load(path, limit=LIMIT)
    except ValueError as error:
        alike = "Write them alike" in str(error)  # flags of shapes (n,) and (n, 1) in different shards
        expect(alike, f"read in shards a log that load refuses: {str(error)[:200]}")
        return
    for name in ("reward", "terminated", "truncated", "begins", "ratio", "action", "behaviour_prob"):
        one, other = getattr(joined, name), getattr(whole, name)
        expect((one is None) == (other is None) and (one is None or np.array_equal(one, other)), f"{name} differs")
    expect(np.array_equal(joined.observations[joined.now], whole.observations[whole.now]), "observations differ")
    goes_on = whole.next >= 0
    expect(np.array_equal(goes_on, joined.next >= 0), "ends differ")
    after = whole.observations[whole.next[goes_on]], joined.observations[joined.next[goes_on]]
    expect(np.array_equal(*after), "next observations differ")


def table_case(rng: Rng, folder: Path) -> str | None:
    """Sources in memory: dicts of lists, of arrays and of masked arrays, pandas frames, Arrow tables."""
    columns = base_table(rng)
    mutate_table(rng, columns)
    kind = int(rng.integers(5))
    options: dict[str, Any] = {}
    if chance(rng, 0.05):
        options["limit"] = pick(rng, [scalar(rng), 0, 100, -1])
    if chance(rng, 0.1):
        wrong = [{"reward": "r"}, {"obs": ["obs_0"]}, {"obs": []}, {"x": "y"}, "reward", 3, {"done": None},
            {"reward": None},
                 {"obs": 3}, {"episode": "step"}, {3: 4}, {"obs": "obs_"}, {"obs": [None]},
                 {"reward": ["reward"]}]  # fmt: skip
        options["columns"] = pick(rng, wrong)
    decimal = "Decimal" in repr(columns)  # which NumPy does not have, nor missing entries in lists
    if kind == 0:
        complete = not decimal and "None" not in repr(columns)
        return _check_source(rng, columns, (lambda: columns) if complete else None, options)
    if kind == 1:
        arrays = {name: _array(rng, values) for name, values in columns.items()}
        plain = {name: values.tolist() for name, values in arrays.items()}
        lists = any(values.dtype == object and values.ndim > 1 for values in arrays.values())
        return _check_source(rng, arrays, None if decimal or lists else lambda: plain, options)
    if kind == 2:
        table = arrow_table(rng, columns)
        return _check_source(rng, table, None if table is None else lambda: plain_arrow(table), options)
    try:
        frame = pandas.DataFrame({name: pandas.Series(values) for name, values in columns.items()})
        frame = frame.convert_dtypes() if kind == 3 else frame
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        return None
    plain = {name: [None if _is_missing(v) else v for v in frame[name].tolist()] for name in frame.columns}
    return _check_source(rng, frame, lambda: plain, options)


def _is_missing(value: Any) -> bool:
    return value is None or value is pandas.NA or value is pandas.NaT or (isinstance(value, float) and value != value)


def _check_source(rng: Rng, source: Any, plain: Callable[[], Columns] | None, options: dict[str, Any]) -> str | None:
    if options or plain is None:
        ask(lambda: vf.load(source, **options))
        return None
    return check_load(rng, source, plain)


def _array(rng: Rng, values: list[Any]) -> Any:
    """A masked array where values are missing, else an array of some dtype."""
    missing = [value is None for value in values]
    if any(missing) or chance(rng, 0.1):
        known = [value for value in values if value is not None]
        fill = known[0] if known and isinstance(known[0], int | float) else 1e6
        filled = [fill if value is None else value for value in values]
        mask = missing if any(missing) else rng.random(len(values)) < 0.1
        try:
            return np.ma.masked_array(filled, mask=mask)
        except (ValueError, TypeError, OverflowError, np.ma.MaskError):
            return np.array(values, object)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        array = np.array(values, object)
    return mutate_array(rng, array) if chance(rng, 0.1) else array


TARGETS = [
    Target("parquet", parquet_case),
    Target("stream", stream_case),
    Target("load", table_case),
]
