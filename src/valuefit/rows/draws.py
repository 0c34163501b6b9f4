"""The steps drawn by a stochastic method, as arguments of kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

from valuefit.rows.compile import compiled
from valuefit.typing import Array


class RowSets(NamedTuple):
    """The rows of phi, psi and u as arguments of kernels (`Rows.kernel`)."""

    phi: Any
    psi: Any
    u: Any


class Draws(NamedTuple):
    """Data of the drawn steps in the order of use, gathered in advance because random access in a kernel is slow."""

    now: Array
    next: Array
    discount: Array
    u_row: Array
    u_factor: Array


@compiled
def at(draws: Any, j: int) -> Any:
    """now, next, discount, row of u and factor of u of the j-th draw."""
    return draws.now[j], draws.next[j], draws.discount[j], draws.u_row[j], draws.u_factor[j]
