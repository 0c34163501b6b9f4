"""Conjugate gradients on a sparse C that is too dear to factorise, with a sweep over the features forth and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.linalg.fronts import conjugate_sweeps, sweep_back, sweep_forth
from valuefit.typing import Array


@dataclass(frozen=True)
class Relaxation:
    """(I + N)(I + N'), where C scaled to a unit diagonal is N + I + N': symmetric Gauss-Seidel.

    It is never below C, and one product with it or C reads C once. `solve` gives C^-1 r better by some steps of
    conjugate gradients in its coordinates, where a step is a sweep back and one forth (Eisenstat 1981).
    """

    scale: Array
    indptr: Array
    indices: Array
    data: Array
    middle: Array  # where the diagonal stands in each row

    @property
    def size(self) -> int:
        return len(self.data)

    def half(self, r: Array) -> Array:
        """(I + N)^-1 r."""
        return sweep_forth(self.indptr, self.indices, self.data, self.middle, r * self.scale)

    def back(self, y: Array) -> Array:
        """(I + N')^-1 y."""
        return sweep_back(self.indptr, self.indices, self.data, self.middle, y.copy()) * self.scale

    def solve(self, y: Array, steps: int) -> Array:
        """C^-1 r, nearly, from y = (I + N)^-1 r."""
        found = conjugate_sweeps(self.indptr, self.indices, self.data, self.middle, y.copy(), steps)
        return np.asarray(found * self.scale)


def relax(C: Any) -> Relaxation:
    """From C in CSR with sorted indices and a positive diagonal."""
    scale = 1 / np.sqrt(C.diagonal())
    rows = np.repeat(np.arange(C.shape[0]), np.diff(C.indptr))
    data = C.data * scale[rows] * scale[C.indices]
    return Relaxation(scale, C.indptr, C.indices, data, np.flatnonzero(C.indices == rows))
