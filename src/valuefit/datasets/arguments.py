"""Checks of the arguments of the generators; errors name the argument."""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.data.validation import number, whole_number
from valuefit.memory import require_memory


def probability(name: str, value: Any) -> float:
    """A number between 0 and 1."""
    return number(name, value, "it must lie between 0 and 1", lambda x: 0 <= x <= 1)


def generator(seed: Any) -> np.random.Generator:
    """The random generator of a seed."""
    return np.random.default_rng(whole_number("seed", seed, low=0))


def require_room(numbers: int, what: str) -> None:
    """Refuse arrays of this many numbers before they are drawn, if they do not fit into memory."""
    require_memory(numbers, what, "Ask for less.")
