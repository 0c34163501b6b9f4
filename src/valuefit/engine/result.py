"""The result of `solve`: plain data with a one-line repr, stored in one file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from valuefit.data.archive import read_archive, write_archive
from valuefit.data.serialise import as_plain, from_plain
from valuefit.messages import said
from valuefit.typing import Array

RESULT_FORMAT = 2  # version of the file
Status = Literal["converged", "budget", "diverged", "singular", "interrupted"]
STATUSES = get_args(Status)
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
    status: Status
    message: str
    passes: float
    seconds: float
    history: Array
    objective: float | None
    gap: float | None
    residual: float | None
    solver: str
    settings: dict[str, Any] = field(default_factory=dict)
    tol: float | Literal["statistical"] = 0.0  # as passed to solve: a gap, or "statistical"
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
        arrays: dict[str, Array] = {}
        facts = as_plain(self, arrays)
        return write_archive(Path(path), facts, arrays, version=RESULT_FORMAT, force=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a file that `save` wrote, without unpickling."""
        facts, arrays = read_archive(Path(path), "result", version=RESULT_FORMAT, remedy=RESULT_REMEDY)
        try:
            result: Result = from_plain(cls, facts, arrays)
            check_result(result)
        except ValueError as error:
            raise ValueError(f"{path} is not a valuefit result: {said(error)}. {RESULT_REMEDY}") from error
        return result


def check_result(result: Result) -> None:
    """Raise ValueError for arrays and numbers of a file that no result has."""
    for name in ("theta", "w"):
        array = getattr(result, name)
        if array.ndim != 1 or array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"{name} does not hold finite weights")
    history = result.history
    columns = history.dtype.names or ()
    numbers = all(history.dtype[name] == np.float64 for name in columns)
    if history.ndim != 1 or columns not in (HISTORY_COLUMNS, HISTORY_COLUMNS[:3]) or not numbers:
        raise ValueError("history does not have the columns passes, seconds and residual")
    if result.seed < 0 or not all(0 <= column < len(result.theta) for column in result.dead):
        raise ValueError("seed or dead is negative, or dead names features without weights")
