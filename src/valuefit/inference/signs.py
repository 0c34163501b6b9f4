"""Random signs by number, such as that of a step: a part of a log has the same ones as the whole."""

from __future__ import annotations

import numpy as np

from valuefit.typing import Array

BLOCK_SIGNS = 1 << 16  # that one generator draws


def random_signs(key: tuple[int, ...], first: int, stop: int, width: int = 1) -> Array:
    """Rows `first` to `stop`, (stop - first, width), of the endless matrix of random signs of this key."""
    size = max(1, BLOCK_SIGNS // width)
    blocks = range(first // size, stop // size + 1)
    drawn = [np.random.default_rng([*key, block]).integers(0, 2, (size, width), np.int8) for block in blocks]
    start = first - blocks.start * size
    return np.asarray(2.0 * np.concatenate(drawn)[start : start + stop - first] - 1.0)
