"""Types that every package uses."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Gradient = tuple[Array, Array]  # B(theta, w): the part of theta, the part of w
