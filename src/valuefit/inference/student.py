"""Quantiles of Student's t for intervals at any level."""

from __future__ import annotations

from typing import Any

from scipy.special import stdtrit

from valuefit.typing import Array

MAX_TAIL = 1 - 2.0**-53  # the largest float64 below 1: a tail that rounds to 1 would have an infinite quantile


def t_quantile(degrees_of_freedom: float | Array, tail: float) -> Any:
    """The number that Student's t exceeds with this probability; from 1 - tail it would be infinite for small ones."""
    return -stdtrit(degrees_of_freedom, min(tail, MAX_TAIL))
