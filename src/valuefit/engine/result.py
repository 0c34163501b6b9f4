"""The result of `solve`: plain data with a one-line repr, stored in one file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.archive import is_number, read_archive, write_archive
from valuefit.typing import Array

RESULT_FORMAT = 1  # version of the file
ARRAYS = ("theta", "w", "history")
STATUSES = ("converged", "budget", "diverged", "singular", "interrupted")
HISTORY_COLUMNS = ("passes", "seconds", "residual", "gap")
RESULT_REMEDY = "Solve and save it again."


@dataclass(frozen=True)
class Result:
    """The weights, a bound of their gap, and the history of the solve.

    status: converged, budget, diverged, singular or interrupted; `message` explains it in a sentence and says what
    to try next. gap: an upper bound of (F(theta) - F*) / (F(0) - F*), None where it was not computed. objective:
    F(theta), None likewise. residual: |B(theta, w)| / |b|. dead: features without data, whose weight is 0.
    history: a structured array of passes, seconds and residual, with the true gap if a reference was given.
    """

    theta: Array
    w: Array
    status: str
    message: str
    passes: float
    seconds: float
    history: Array
    objective: float | None
    gap: float | None
    residual: float
    solver: str
    settings: dict[str, Any] = field(default_factory=dict)
    tol: float | str = 0.0  # as passed to solve: a gap, or "statistical"
    seed: int = 0
    dead: tuple[int, ...] = ()

    def __repr__(self) -> str:
        gap = "unknown" if self.gap is None else f"{self.gap:.1e}"
        return (
            f"Result({self.solver}: {self.status}, gap {gap}, {self.passes:.1f} passes, "
            f"{self.seconds:.2f} s, {len(self.theta)} weights)"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything to one .npz file. It is renamed into place, so a failed save keeps the old file."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return write_archive(Path(path), result_facts(self), arrays, version=RESULT_FORMAT, force=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a file that `save` wrote, without unpickling."""
        facts, arrays = read_archive(Path(path), "result", version=RESULT_FORMAT, remedy=RESULT_REMEDY)
        try:
            return result_of(facts, arrays)
        except ValueError as error:
            raise ValueError(f"{path} is not a valuefit result: {error}. {RESULT_REMEDY}") from error


def result_facts(result: Result) -> dict[str, Any]:
    """Everything but the arrays, for JSON."""
    return {one.name: getattr(result, one.name) for one in fields(result) if one.name not in ARRAYS}


def result_of(facts: dict[str, Any], arrays: dict[str, Array]) -> Result:
    """The result with these facts and arrays of a file, whose names and types are checked."""
    missing = [name for name in ARRAYS if name not in arrays]
    differing = sorted(facts.keys() ^ {one.name for one in fields(Result)} - set(ARRAYS))
    if missing or differing:
        raise ValueError(f"fields {', '.join([*missing, *differing])[:200]} are missing or unknown")
    for name in ("theta", "w"):
        if arrays[name].ndim != 1 or arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} does not hold finite weights")
    history = arrays["history"]
    columns = history.dtype.names or ()
    numbers = all(history.dtype[name] == np.float64 for name in columns)
    if history.ndim != 1 or columns not in (HISTORY_COLUMNS, HISTORY_COLUMNS[:3]) or not numbers:
        raise ValueError("history does not have the columns passes, seconds and residual")
    for name, is_valid in VALID_FACTS.items():
        if not is_valid(facts[name]):
            raise ValueError(f"{name} is {str(facts[name])[:40]!r}, which no result has")
    values: dict[str, Any] = {**facts, **{name: arrays[name] for name in ARRAYS}, "dead": tuple(facts["dead"])}
    return Result(**values)


def _is_bound(value: Any) -> bool:
    return value is None or is_number(value)


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


# whether a value in a file is valid
VALID_FACTS: dict[str, Callable[[Any], bool]] = {
    "status": lambda value: value in STATUSES,
    "message": lambda value: isinstance(value, str),
    "passes": is_number,
    "seconds": is_number,
    "objective": _is_bound,
    "gap": _is_bound,
    "residual": _is_bound,
    "solver": lambda value: isinstance(value, str),
    "settings": lambda value: isinstance(value, dict),
    "tol": lambda value: value == "statistical" or is_number(value),
    "seed": lambda value: type(value) is int and value >= 0,
    "dead": lambda value: isinstance(value, list) and all(map(_is_index, value)),
}
