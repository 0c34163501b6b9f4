"""Files of finished runs, one each, from which an interrupted experiment resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from valuefit.atomic import write_bytes
from valuefit.data.archive import check_version, is_number
from valuefit.messages import said

RUN_FORMAT = 1  # version of the files
RUN_REMEDY = "Delete it and run the command again."


def write_run(path: Path, run: dict[str, Any]) -> None:
    """Write a finished run: plain data for JSON."""
    write_bytes(path, json.dumps({"format": RUN_FORMAT, **run}, allow_nan=False).encode())


def read_run(path: Path, checks: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    """A run of `write_run`, if every key of `checks` has a valid value."""
    most = 1 << 24  # bytes; a run has at most 600 points
    with open(path, "rb") as stream:
        content = stream.read(most + 1)
    try:
        run = json.loads(content) if len(content) <= most else None
    except (ValueError, RecursionError) as error:
        raise damaged_run(path, said(error)) from None
    if not isinstance(run, dict):
        raise damaged_run(path, "it holds no table of keys")
    check_version(path, "run", run.pop("format", None), RUN_FORMAT, RUN_REMEDY)
    for key, is_valid in checks.items():
        if key not in run:
            raise damaged_run(path, f"the key {key!r} is missing")
        if not is_valid(run[key]):
            raise damaged_run(path, f"the value of {key!r} is not that of this run")
    return run


def damaged_run(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is not the file of a finished run, or it is damaged: {why}. {RUN_REMEDY}")


def are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))
