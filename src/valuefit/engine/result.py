"""The result of `solve`: plain data with a one-line repr, stored in one file."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import write_bytes
from valuefit.typing import Array

FORMAT = 1  # version of the result file


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
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("theta", "w", "history")}
        text = json.dumps({"format": FORMAT, **facts}, allow_nan=False)
        stream = io.BytesIO()
        np.savez(stream, facts=np.array(text), theta=self.theta, w=self.w, history=self.history)
        return write_bytes(Path(path), stream.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a file that `save` wrote, without unpickling."""
        try:
            with open(path, "rb") as stream:
                stored = np.load(stream, allow_pickle=False)
                facts = dict(json.loads(str(stored["facts"])))
                version = facts.pop("format")
                arrays = {name: stored[name] for name in ("theta", "w", "history")}
        except FileNotFoundError:
            raise
        except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path} is not a valuefit result, or was cut short ({error}). Solve and save it again."
            ) from error
        if version != FORMAT:
            raise ValueError(
                f"{path} has result format {version}; this version of valuefit reads format {FORMAT}. "
                "Load it with the version that wrote it, or solve again."
            )
        expected = {f.name for f in fields(cls)} - arrays.keys()
        if facts.keys() != expected:
            differing = ", ".join(sorted(facts.keys() ^ expected))
            raise ValueError(
                f"{path} is not a valuefit result: fields {differing} are missing or unknown. Solve and save it again."
            )
        return cls(**arrays, **{**facts, "dead": tuple(facts["dead"])})
