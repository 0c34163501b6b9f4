"""Where the passes of a solver over a problem run: in memory, or on a device that its rows are copied to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from valuefit.data.validation import whole_number
from valuefit.extras import need
from valuefit.memory import fits
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.rows.storage import Rows


def placement(device: Any, memory: Any = None) -> AbstractContextManager[Callable[[Problem], SaddlePoint]]:
    """A context with a function that returns a problem as it is (None), or its copy on this device, such as "cuda"."""
    if device is None:
        if memory is not None:
            raise ValueError('device_memory is given without a device. Give device="cuda" too, or leave it out.')
        return nullcontext(lambda problem: problem)
    need("torch", "gpu", "device=")
    return Placement(device, memory)


class Placement:
    """Copies problems in memory to a device; problems that share their rows share the copy.

    Their moments are formed there too, and kept in the problem in memory, where standard errors and checks use them.
    Until the context ends, products over all rows in memory are computed with their copy, if it is on the device.
    memory: bytes that rows may take on the device; larger ones stay in memory and are copied whenever they are read.
    """

    def __init__(self, device: Any, memory: Any = None) -> None:
        requirement = "it must be a number of bytes, 1 or more"
        self.memory = None if memory is None else whole_number("device_memory", memory, requirement, low=1)
        self._module = import_module("valuefit.gpu.on_device")  # imports torch
        self.device = self._module.device_of(device)
        self._copies: dict[int, tuple[Rows, Any]] = {}  # by identity; the rows stay alive with their copy

    def __enter__(self) -> Placement:
        return self

    def __exit__(self, *_: object) -> None:
        """Give the memory of the device back."""
        for rows, _copy in self._copies.values():
            rows.on_device = None
        self._copies.clear()

    def __call__(self, problem: Problem) -> SaddlePoint:
        placed: SaddlePoint = self._module.DeviceProblem(
            self._copy(problem.phi), None if problem.shared else self._copy(problem.psi), problem.now, problem.next,
            problem.reward, problem.discount, problem.ratio, problem.begins, trace=problem.trace, ridge=problem.ridge,
            identity=problem.identity, dead=problem.dead,
        )  # fmt: skip
        if fits(2 * problem.k * (problem.k + problem.d)):
            problem.use_moments_of(placed)
        return placed

    def _copy(self, rows: Rows) -> Any:
        if id(rows) not in self._copies:
            copy = self._module.copied(rows.matrix, self.device, self.memory)
            self._copies[id(rows)] = rows, copy
            rows.on_device = self._module.host_products(copy)
        return self._copies[id(rows)][1]
