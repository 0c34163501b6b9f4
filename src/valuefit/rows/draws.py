"""The steps that a stochastic method draws, in the form that kernels take."""

from __future__ import annotations

from typing import Any, NamedTuple

from valuefit.rows.compile import compiled
from valuefit.typing import Array


class RowSets(NamedTuple):
    """The rows of phi, psi and u in the form that kernels take."""

    phi: Any
    psi: Any
    u: Any


class Draws(NamedTuple):
    """Steps in the order of use. Gathered in advance: a kernel would wait for memory at each look-up."""

    now: Array
    next: Array
    discount: Array
    u_row: Array
    u_factor: Array


@compiled
def at(draws: Any, j: int) -> Any:
    """now, next, discount, row of u and its factor, of the j-th draw."""
    return draws.now[j], draws.next[j], draws.discount[j], draws.u_row[j], draws.u_factor[j]
