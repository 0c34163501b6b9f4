"""Logs in CSV and JSON Lines, and logs of several files."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet

import valuefit as vf
from fuzz.logs import LIMIT, arrow_table, check_load, plain_arrow
from fuzz.mutators import Rng, chance, mutate_bytes, mutate_text, pick
from fuzz.outcome import ask
from fuzz.reference import Columns, Unknown
from fuzz.runner import Target
from fuzz.tables import base_table, mutate_table

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
    if chance(rng, 0.05):
        return _check_zipped(rng, path, lambda: _plain_csv(data))
    return check_load(rng, path, lambda: _plain_csv(data))


def _csv_text(columns: Columns, delimiter: str) -> str:
    def cell(value: Any) -> str:
        text = "" if value is None else str(value)
        return (
            '"' + text.replace('"', '""') + '"' if any(mark in text for mark in (delimiter, '"', "\n", "\r")) else text
        )

    rows = zip(*columns.values(), strict=False)
    return "\n".join([delimiter.join(map(cell, columns)), *(delimiter.join(map(cell, row)) for row in rows)]) + "\n"


def _plain_csv(data: bytes) -> Columns:
    first = data.split(b"\n")[0]
    if first.count(b'"') % 2:  # a name of two lines
        raise Unknown
    delimiter = max(",", ";", "\t", key=lambda mark: first.count(mark.encode()))
    options = pyarrow.csv.ParseOptions(delimiter=delimiter)
    return plain_arrow(pyarrow.csv.read_csv(io.BytesIO(data), parse_options=options))


def _check_zipped(rng: Rng, path: Path, plain: Callable[[], Columns]) -> str | None:
    """Compress the file, and sometimes damage the compressed bytes."""
    data = gzip.compress(path.read_bytes(), mtime=0)
    target = path.with_name(path.name + ".gz")
    if chance(rng, 0.7):
        target.write_bytes(data)
        return check_load(rng, target, plain)
    target.write_bytes(mutate_bytes(rng, data))
    ask(vf.load, target, limit=LIMIT)
    return None


# ---- JSON Lines --------------------------------------------------------------------------------------

RLLIB = {"next_obs": "new_obs", "action": "actions", "reward": "rewards", "terminated": "terminateds",
"truncated": "truncateds",
         "done": "dones", "episode": "eps_id", "step": "t"}  # fmt: skip


def json_case(rng: Rng, folder: Path) -> str | None:
    """One step per line, or batches of steps under the names of RLlib."""
    columns = base_table(rng)
    mutate_table(rng, columns)
    if chance(rng, 0.4):
        columns = {RLLIB.get(name, name): values for name, values in columns.items()}
    text = "\n".join(_json_lines(rng, columns)) + "\n"
    data = text.encode("utf-8", "surrogatepass")
    draw = rng.random()
    if draw < 0.4:
        data = mutate_text(rng, text)
    elif draw < 0.42:
        data += b"[" * 100_000
    elif draw < 0.44:
        data += b'{"reward": ' + b"9" * 5000 + b"}"
    path = folder / "log.jsonl"
    path.write_bytes(data)
    if chance(rng, 0.05):
        return _check_zipped(rng, path, lambda: _plain_json(data))
    return check_load(rng, path, lambda: _plain_json(data))


def _json_lines(rng: Rng, columns: Columns) -> list[str]:
    rows = list(zip(*columns.values(), strict=False))
    if chance(rng, 0.5):
        return [json.dumps(dict(zip(columns, row, strict=True)), default=str) for row in rows]
    lines, at = [], 0
    while at < len(rows):
        stop = at + int(rng.integers(1, 8))
        batch = {name: values[at:stop] for name, values in columns.items()}
        extra = {"type": "SampleBatch"} if chance(rng, 0.5) else {}
        lines.append(json.dumps({**extra, **batch}, default=str))
        at = stop
    return lines


def _plain_json(data: bytes) -> Columns:
    records = [json.loads(line) for line in data.decode().split("\n") if line.strip()]
    if not all(isinstance(record, dict) for record in records) or any("type" in record for record in records):
        records = [{key: value for key, value in record.items() if key != "type"} for record in records]
    names = list(dict.fromkeys(name for record in records for name in record))
    columns: Columns = {name: [] for name in names}
    for record in records:
        reward = record.get("reward", record.get("rewards"))
        count = len(reward) if isinstance(reward, list) else None
        for name in names:
            values = record.get(name)
            if isinstance(values, dict) or (count is not None and values is not None and len(values) != count):
                raise Unknown
            columns[name] += [values] if count is None else [None] * count if values is None else values
        if count is not None and not {"episode", "eps_id", "episode_id"} & record.keys():
            raise Unknown  # whether an episode continues in the next batch
    return columns


# ---- several files -------------------------------------------------------------------------------------


def files_case(rng: Rng, folder: Path) -> str | None:
    """The rows of one table in several files: a list of paths, a folder or a pattern."""
    columns = base_table(rng)
    if chance(rng, 0.6):
        mutate_table(rng, columns)
    inside = folder / "parts"
    inside.mkdir(exist_ok=True)
    for old in inside.iterdir():
        old.unlink()
    n = min(map(len, columns.values()), default=0)
    cuts = sorted({0, n, *(int(cut) for cut in rng.integers(0, n + 1, int(rng.integers(0, 12))))})
    kind = pick(rng, ["csv", "jsonl", "parquet"])
    paths, plain = [], []
    for part, (start, stop) in enumerate(pairwise(cuts)):
        rows = {name: values[start:stop] for name, values in columns.items()}
        data, read = _part(rng, rows, kind)
        path = inside / f"part-{part}.{kind}"
        path.write_bytes(data)
        paths.append(path)
        plain.append(read)
    if paths and chance(rng, 0.1):
        damaged = pick(rng, paths)
        damaged.write_bytes(mutate_bytes(rng, damaged.read_bytes()))
        plain = []
    source: Any = pick(rng, [paths, [str(path) for path in paths], inside, str(inside / f"*.{kind}")])
    if isinstance(source, list) and chance(rng, 0.1):
        source = [*source, pick(rng, ["missing.csv", "", 3, None, inside, "log.npz", "*"])]
        plain = []

    def joined() -> Columns:
        parts = [one() for one in plain]
        names = {tuple(one) for one in parts}
        if len(names) != 1 or not {"episode", "episode_id"} & set(next(iter(names))):
            raise Unknown  # without ids, a file ends its episode
        return {name: [value for one in parts for value in one[name]] for name in parts[0]}

    return check_load(rng, source, joined)


def _part(rng: Rng, rows: Columns, kind: str) -> tuple[bytes, Any]:
    """The bytes of one file, and its plain read."""
    if kind == "csv":
        data = _csv_text(rows, ",").encode("utf-8", "surrogatepass")
        return data, lambda: _plain_csv(data)
    if kind == "jsonl":
        data = ("\n".join(_json_lines(rng, rows)) + "\n").encode("utf-8", "surrogatepass")
        return data, lambda: _plain_json(data)
    stream = io.BytesIO()
    table = arrow_table(rng, rows)
    try:
        pyarrow.parquet.write_table(table, stream)
    except (pyarrow.ArrowException, OSError):
        table = table.slice(0, 0)
    return stream.getvalue(), lambda: plain_arrow(table)


TARGETS = [Target("csv", csv_case), Target("json-lines", json_case), Target("files", files_case)]
