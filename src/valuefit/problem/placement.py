"""Where the passes of a solver over a problem run: in memory, or on a device that its rows are copied to."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from valuefit.extras import need
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint


def placement(device: Any) -> Callable[[Problem], SaddlePoint]:
    """A function that returns a problem as it is (None), or its copy on this device, such as "cuda"."""
    if device is None:
        return lambda problem: problem
    need("torch", "gpu", "device=")
    found: Callable[[Problem], SaddlePoint] = import_module("valuefit.problem.device").Placement(device)
    return found
