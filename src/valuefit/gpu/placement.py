"""Where the passes of a solver over a problem run: in memory, or on a device that its rows are copied to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from valuefit.extras import need
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint


def placement(device: Any, memory: Any = None) -> AbstractContextManager[Callable[[Problem], SaddlePoint]]:
    """A context with a function that returns a problem as it is (None), or its copy on this device, such as "cuda"."""
    if device is None:
        if memory is not None:
            raise ValueError('device_memory is given without a device. Give `device="cuda"` too, or leave it out.')
        return nullcontext(lambda problem: problem)
    need("torch", "gpu", "device=")
    placed: AbstractContextManager[Callable[[Problem], SaddlePoint]]
    placed = import_module("valuefit.gpu.on_device").Placement(device, memory)
    return placed
