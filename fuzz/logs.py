"""Logs in every format, written from mutated tables or with mutated bytes, and compared with a plain read."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pyarrow
import pyarrow.csv
import pyarrow.parquet

import valuefit as vf
from fuzz.mutators import (
    Rng,
    base_table,
    chance,
    mutate_array,
    mutate_bytes,
    mutate_npy,
    mutate_npz,
    mutate_table,
    mutate_text,
    npy_bytes,
    npz_bytes,
    number,
    pick,
)  # fmt: skip
from fuzz.outcome import RIGHT, Refusal, ask, expect
from fuzz.reference import Columns, Log, Unknown, check_solution, compare_log, feature_rows, read_log
from fuzz.runner import Target

LIMIT = 256 << 20  # bytes, the `limit` of `load`: the mutated files hold a few kilobytes
MAX_FEATURES = 8  # of problems that are also solved in rational numbers
EXACT_SOLVERS = ("auto", "lstd", "krylov", "recursive-lstd")


def check_load(rng: Rng, source: Any, plain: Callable[[], Columns], **options: Any) -> str | None:
    """Load a log; compare its steps, and sometimes a solve, with those that the plain read of the source means."""
    try:
        log = ask(vf.load, source, limit=LIMIT, **options)
    except Refusal as refusal:
        expected = _expected(plain)
        expect(expected is None, f"refused a valid log: {str(refusal)[:300]}")
        raise
    expected = _expected(plain)
    if expected is None:
        return None
    compare_log(log, expected)
    if chance(rng, 0.3):
        check_evaluate(rng, log, expected)
    return RIGHT


def _expected(plain: Callable[[], Columns]) -> Log | None:
    """The steps of a plain read; None where the library cannot read it either, or the reference does not decide."""
    try:
        columns = plain()
    except Exception:
        return None
    try:
        return read_log(columns)
    except Unknown:
        return None


def check_evaluate(rng: Rng, log: vf.Transitions, expected: Log) -> None:
    """Evaluate a log and compare the weights with exact LSTD and the policy value with the weights."""
    discount, trace = pick(rng, [0.0, 0.5, 0.9, 0.99]), pick(rng, [0.0, 0.0, 0.7, 1.0])
    ridge, solver = pick(rng, [0.0, 0.0, 0.01]), pick(rng, EXACT_SOLVERS)
    tol = 1e-6
    features = "one-hot" if expected.labels else "identity"
    try:
        done = ask(
            vf.evaluate, log, features=features, discount=discount, trace=trace, ridge=ridge, solver=solver, tol=tol
        )
    except Refusal:
        return
    theta = done.result.theta.tolist()
    estimate = done.policy_value.estimate
    expect(np.isfinite(estimate), f"the policy value is {estimate}")
    try:
        rows, _, used = feature_rows(expected)
        if len(used) > MAX_FEATURES:
            return
        starts = [rows[t] for t, s in enumerate(expected.steps) if t == 0 or expected.steps[t - 1].episode != s.episode]
        weights = [theta[j] for j in used]
        terms = [float(w) * float(x) / len(starts) for row in starts for w, x in zip(weights, row, strict=True)]
        error = abs(sum(terms) - estimate)
        expect(error <= 1e-9 * sum(map(abs, terms)), f"the policy value is {estimate}, the weights give {sum(terms)}")
        check_solution(expected, done.result, tol, discount=discount, trace=trace, ridge=ridge)
    except Unknown:
        return


# ---- text ------------------------------------------------------------------------------------------


def csv_case(rng: Rng, folder: Path) -> str | None:
    columns = base_table(rng)
    mutate_table(rng, columns)
    text = _csv_text(columns, pick(rng, [",", ",", ",", ";", "\t"]))
    data = text.encode("utf-8", "surrogatepass")
    if chance(rng, 0.5):
        data = mutate_text(rng, text)
    if chance(rng, 0.01):
        data = b"x" * pick(rng, [131_071, 131_073, 1 << 20]) + b"," + data
    if chance(rng, 0.03):
        data = b"\xef\xbb\xbf" + data
    path = folder / "log.csv"
    path.write_bytes(data)
    return check_load(rng, path, lambda: _plain_csv(path))


def _csv_text(columns: Columns, delimiter: str) -> str:
    def cell(value: Any) -> str:
        text = "" if value is None else str(value)
        return (
            '"' + text.replace('"', '""') + '"' if any(mark in text for mark in (delimiter, '"', "\n", "\r")) else text
        )

    rows = zip(*columns.values(), strict=False)
    return "\n".join([delimiter.join(map(cell, columns)), *(delimiter.join(map(cell, row)) for row in rows)]) + "\n"


def _plain_csv(path: Path) -> Columns:
    first = path.read_bytes().split(b"\n")[0]
    delimiter = max(",", ";", "\t", key=lambda mark: first.count(mark.encode()))
    options = pyarrow.csv.ParseOptions(delimiter=delimiter)
    with open(path, "rb") as stream:
        return _plain_arrow(pyarrow.csv.read_csv(stream, parse_options=options))


# ---- Arrow: Parquet files and tables in memory ---------------------------------------------------------

ARROW_TYPES = [
    pyarrow.int8(), pyarrow.uint8(), pyarrow.int16(), pyarrow.int32(), pyarrow.int64(), pyarrow.uint64(), pyarrow.float16(),
    pyarrow.float32(), pyarrow.float64(), pyarrow.bool_(), pyarrow.decimal128(20, 3), pyarrow.timestamp("us"), pyarrow.string(),
    pyarrow.dictionary(pyarrow.int8(), pyarrow.int64()), pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
]  # fmt: skip
LISTS = [pyarrow.list_, pyarrow.large_list, lambda kind: pyarrow.list_(kind, 2)]


def arrow_table(rng: Rng, columns: Columns) -> Any:
    """The table, with other Arrow types for a few columns that admit them."""
    arrays = {}
    for name, values in columns.items():
        kind = pick(rng, ARROW_TYPES)
        if any(isinstance(value, list) for value in values):
            kind = pick(rng, LISTS)(kind)
        texts = [None if value is None else str(value) for value in values]
        for attempt, given in (
            (kind if chance(rng, 0.15) else None, values),
            (None, values),
            (pyarrow.string(), texts),
        ):
            try:
                arrays[name] = pyarrow.array(given, attempt)
                break
            except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
                continue
    length = min(map(len, arrays.values()), default=0)
    return pyarrow.table({name: array[:length] for name, array in arrays.items()})


def _plain_arrow(table: Any) -> Columns:
    if len(set(table.column_names)) < len(table.column_names):
        raise Unknown
    return {name: table[name].to_pylist() for name in table.column_names}


def parquet_case(rng: Rng, folder: Path) -> str | None:
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
    if chance(rng, 0.5):
        footer = int.from_bytes(data[-8:-4], "little")
        at = len(data) - 8 - footer if chance(rng, 0.7) else 0  # the metadata are read first
        data = data[:at] + mutate_bytes(rng, data[at:])
    path = folder / "log.parquet"
    path.write_bytes(data)
    return check_load(rng, path, lambda: _plain_arrow(pyarrow.parquet.read_table(path, use_threads=False)))


def table_case(rng: Rng, folder: Path) -> str | None:
    """Sources in memory: dicts of lists, of arrays and of masked arrays, pandas frames, Arrow tables."""
    columns = base_table(rng)
    mutate_table(rng, columns)
    kind = int(rng.integers(5))
    options: dict[str, Any] = {}
    if chance(rng, 0.1):
        wrong = [{"reward": "r"}, {"obs": ["obs_0"]}, {"obs": []}, {"x": "y"}, "reward", 3, {"done": None}, {"reward": None},
                 {"obs": 3}, {"episode": "step"}, {3: 4}, {"obs": "obs_"}, {"obs": [None]}, {"reward": ["reward"]}]  # fmt: skip
        options["columns"] = pick(rng, wrong)
    if kind == 0:
        return _check_source(rng, columns, columns, options)
    if kind == 1:
        arrays = {name: _array(rng, values) for name, values in columns.items()}
        return _check_source(rng, arrays, {name: values.tolist() for name, values in arrays.items()}, options)
    if kind == 2:
        table = arrow_table(rng, columns)
        return _check_source(rng, table, None if table is None else _plain_arrow(table), options)
    try:
        frame = pandas.DataFrame({name: pandas.Series(values) for name, values in columns.items()})
        frame = frame.convert_dtypes() if kind == 3 else frame
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        return None
    plain = {name: [None if _is_missing(v) else v for v in frame[name].tolist()] for name in frame.columns}
    return _check_source(rng, frame, plain, options)


def _is_missing(value: Any) -> bool:
    return value is None or value is pandas.NA or value is pandas.NaT or (isinstance(value, float) and value != value)


def _check_source(rng: Rng, source: Any, plain: Any, options: dict[str, Any]) -> str | None:
    if options or plain is None:
        ask(vf.load, source, limit=LIMIT, **options)
        return None
    return check_load(rng, source, lambda: plain)


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
        except (ValueError, TypeError, OverflowError):
            return np.array(values, object)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        array = np.array(values, object)
    return mutate_array(rng, array) if chance(rng, 0.1) else array


# ---- arrays: .npz, native folder, HDF5, Minari -----------------------------------------------------------


def _vector_names(columns: Columns) -> dict[str, Any]:
    """The columns as arrays, with obs_0, obs_1, ... joined; raises where an array cannot hold the values."""
    arrays = {}
    for name in ("obs", "next_obs"):
        parts = [column for column in columns if column.startswith(f"{name}_") and column[len(name) + 1 :].isdigit()]
        if parts:
            rows = zip(*(columns[part] for part in parts), strict=False)
            arrays[name] = np.array([[np.nan if v is None else v for v in row] for row in rows])
    for name, values in columns.items():
        if not name.startswith(("obs_", "next_obs_")):
            arrays[name] = np.array([np.nan if value is None else value for value in values])
    return {name: array for name, array in arrays.items() if array.dtype.kind in "biufUS"}


def _mutated_arrays(rng: Rng) -> dict[str, Any]:
    columns = base_table(rng)
    mutate_table(rng, columns)
    try:
        arrays = _vector_names(columns)
    except (ValueError, TypeError, OverflowError):
        arrays = _vector_names(base_table(rng))
    if arrays and chance(rng, 0.3):
        name = pick(rng, list(arrays))
        arrays[name] = mutate_array(rng, arrays[name])
    return arrays


def npz_case(rng: Rng, folder: Path) -> str | None:
    arrays = _mutated_arrays(rng)
    if any("/" in name or "\n" in name for name in arrays):
        arrays = {name.replace("/", "").replace("\n", ""): array for name, array in arrays.items()}
    data = npz_bytes(rng, {f"{name}.npy": npy_bytes(array) for name, array in arrays.items()})
    if arrays and chance(rng, 0.6):
        data = mutate_npz(rng, data)
    path = folder / "log.npz"
    path.write_bytes(data)

    def plain() -> Columns:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name].tolist() for name in stored.files if f"{name}.npy" in stored.zip.namelist()}

    return check_load(rng, path, plain)


def native_case(rng: Rng, folder: Path) -> str | None:
    """A folder that `save` wrote, with one file changed."""
    path = folder / "log"
    shutil.rmtree(path, ignore_errors=True)
    log = vf.load({name: values for name, values in _vector_names(base_table(rng)).items()})
    vf.save(log, path)
    files = sorted(path.iterdir())
    for file in (pick(rng, files) for _ in range(int(rng.integers(1, 3)))):
        if file.suffix == ".json":
            file.write_bytes(_mutated_json(rng, file.read_text(errors="replace")))
        elif file.exists():
            file.write_bytes(mutate_npy(rng, file.read_bytes())) if chance(rng, 0.95) else file.unlink()
    loaded = ask(vf.load, path, limit=LIMIT)
    for file in files:
        if file.suffix == ".npy" and file.exists():
            try:
                stored = np.load(file, allow_pickle=False)
            except Exception:  # NumPy's own limits on headers
                continue
            found = getattr(loaded, file.stem)
            same = np.array_equal(found, stored) or np.allclose(found, stored, rtol=0, atol=0, equal_nan=False)
            expect(same and found.shape == stored.shape, f"{file.name} was read as other numbers")
    if chance(rng, 0.3):
        ask(vf.evaluate, loaded, features="one-hot" if loaded.has_numbered_states else "identity", discount=0.9)
    return RIGHT


def _mutated_json(rng: Rng, text: str) -> bytes:
    if chance(rng, 0.5) or "\n" in text:
        return mutate_text(rng, text.replace(", ", ",\n"))
    facts = json.loads(text)
    odd = [None, -1, 0, 10**30, 1e300, "x", [], [1], {}, True, ["\x1b[31m"], number(rng)]
    facts[pick(rng, [*facts, "extra"])] = pick(rng, odd)
    return json.dumps(facts).encode()


D4RL = {"obs": "observations", "next_obs": "next_observations", "reward": "rewards", "terminated": "terminals", "truncated": "timeouts",
        "action": "actions"}  # fmt: skip


def hdf5_case(rng: Rng, folder: Path) -> str | None:
    path = folder / "log.h5"
    with h5py.File(path, "w", libver=pick(rng, ["earliest", "latest"])) as file:
        for name, array in _mutated_arrays(rng).items():
            _write_dataset(rng, file, D4RL.get(name, name), array)
        file.create_group("metadata")["algorithm"] = "text that is not needed"
    if chance(rng, 0.6):
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))

    def plain() -> Columns:
        columns: Columns = {}
        with h5py.File(path, "r") as file:
            for name in file:
                if isinstance(file[name], h5py.Dataset):
                    columns[name] = np.asarray(file[name][()]).tolist()
        return columns

    return check_load(rng, path, plain)


def _write_dataset(rng: Rng, group: Any, name: str, array: Any) -> None:
    name = name.replace("\x00", "").replace("/", "").strip(".") or "x"
    if array.dtype.kind not in "biufc" or name in group:
        array, name = np.zeros(3), f"text {name[:20]}"
    options: dict[str, Any] = {}
    if array.size and array.ndim and chance(rng, 0.5):
        options = {"compression": pick(rng, ["gzip", "lzf", None]), "chunks": True, "shuffle": chance(rng, 0.5)}
    with np.errstate(all="ignore"):
        group.create_dataset(name, data=array.astype(np.float64) if array.dtype.char == "g" else array, **options)


def minari_case(rng: Rng, folder: Path) -> str | None:
    """A Minari folder as Minari 0.5 writes it, with mutated arrays, metadata or bytes."""
    data = folder / "walk-v0" / "data"
    data.mkdir(parents=True, exist_ok=True)
    width = int(rng.integers(1, 4))
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for episode in range(int(rng.integers(2, 5))):
            n = int(rng.integers(1, 6))
            arrays = {
                "observations": np.round(rng.normal(size=(n + 1, width)), 3), "actions": rng.integers(0, 3, n), "rewards": rng.normal(size=n),
                "terminations": np.arange(n) == n - 1 + episode % 2, "truncations": np.arange(n) == n - 1 - (episode + 1) % 2 * n,
            }  # fmt: skip
            group = file.create_group(f"episode_{episode}")
            for name, array in arrays.items():
                if chance(rng, 0.99):
                    _write_dataset(rng, group, name, mutate_array(rng, array) if chance(rng, 0.02) else array)
            group.attrs["id"] = episode
    space = json.dumps(
        {"type": "Box", "dtype": "float64", "shape": [width], "low": [-1.0] * width, "high": [1.0] * width}
    )
    metadata = json.dumps(
        {"total_episodes": 3, "data_format": "hdf5", "observation_space": space, "dataset_id": "walk-v0"}
    )
    path = data / "main_data.hdf5"
    plain = _plain_minari
    if chance(rng, 0.2):
        metadata, plain = _mutated_json(rng, metadata).decode("utf-8", "replace"), _undecided
    elif chance(rng, 0.7):
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    (data / "metadata.json").write_text(metadata)
    return check_load(rng, folder / "walk-v0", lambda: plain(path))


def _undecided(path: Path) -> Columns:
    raise Unknown


def _plain_minari(path: Path) -> Columns:
    names = ("observations", "rewards", "terminations", "truncations", "actions")
    columns: Columns = {name: [] for name in ("episode", "obs", "next_obs", *names[1:])}
    with h5py.File(path, "r") as file:
        groups = sorted(file, key=lambda name: int(name.removeprefix("episode_")))
        for episode in groups:
            arrays = {name: np.asarray(file[episode][name][()]).tolist() for name in names}
            n = len(arrays["rewards"])
            if any(len(arrays[name]) != n + (name == "observations") for name in names):
                raise Unknown
            columns["episode"] += [int(episode.removeprefix("episode_"))] * n
            columns["obs"] += arrays["observations"][:-1]
            columns["next_obs"] += arrays["observations"][1:]
            for name in names[1:]:
                columns[name] += arrays[name]
    return columns


TARGETS = [
    Target("csv", csv_case),
    Target("npz", npz_case),
    Target("native", native_case),
    Target("parquet", parquet_case, cases=1000),
    Target("hdf5", hdf5_case, cases=1000),
    Target("minari", minari_case, cases=1000),
    Target("load", table_case),
]
