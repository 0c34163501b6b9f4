"""The numba loop of tile coding, for inputs large enough to pay for loading numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit


def compiled_without_fastmath(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba, cached on disk if possible, in plain IEEE arithmetic.

    A fused multiply-add rounds differently from NumPy: it would move observations on the edge between two tiles to
    the other side, on processors that have it.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no writable cache directory: compile in every process instead
        return njit(nogil=True)(function)


@compiled_without_fastmath
def tile_numbers(X, low, scale, shift, bins, wraps, tiles, out):
    """out[i, k] = number of the tile of tiling k that holds X[i], as in `tiles.tile_numbers`."""
    for i in range(X.shape[0]):
        for k in range(shift.shape[0]):
            tile = 0
            for c in range(X.shape[1]):
                place = np.floor((X[i, c] - low[c]) * scale[c] + shift[k, c])
                if wraps[c]:
                    number = int(place) % bins[c]
                else:
                    # clipped before the conversion, which overflows beyond 2^63
                    number = int(min(max(place, 0.0), bins[c] - 1.0))
                tile = tile * bins[c] + number
            out[i, k] = k * tiles + tile
