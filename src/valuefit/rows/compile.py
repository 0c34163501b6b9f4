"""Functions that numba compiles on their first call; numba itself is imported only then.

A row operation such as `dot` is declared once and has an implementation for dense and one for sparse rows: inside
kernels the type of the rows chooses between them, so each solver has one kernel for both storages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, update_wrapper
from threading import RLock
from typing import Any

# Full fastmath would delete the isfinite checks that detect divergence.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}

# Minimum numbers read per pass for which compiled loops are used: below, importing numba and loading kernels takes
# longer than the passes take in NumPy. A round number, not tuned; benchmarks/startup.py measures the time it saves.
MIN_COMPILED_NUMBERS = 1_000_000

_declared: list[tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = []
_registered: set[int] = set()
_lock = RLock()


def worth_compiling(numbers: float) -> bool:
    """Whether a pass that reads this many numbers uses compiled loops; smaller ones use NumPy and SciPy."""
    return numbers >= MIN_COMPILED_NUMBERS


class Kernel:
    """A function that numba compiles on its first call, cached on disk if the cache directory is writable."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """The numba dispatcher; other kernels that call this one are linked to it."""
        with _lock:  # several threads may call kernels for the first time
            from numba import njit

            _register()
            try:
                return njit(cache=True, nogil=True, fastmath=FASTMATH)(self.py_func)
            except RuntimeError:  # no writable cache directory: compile in every process instead
                return njit(nogil=True, fastmath=FASTMATH)(self.py_func)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: compile with numba on the first call."""
    return Kernel(function)


def by_storage(declared: Callable[..., Any], dense: Callable[..., Any], sparse: Callable[..., Any]) -> None:
    """Inside kernels, implement `declared` by `dense` for 2-d arrays and by `sparse` for tuples (CSR)."""
    _declared.append((declared, dense, sparse))


def prefetch(array: Any, i: int, j: int) -> Any:
    """Prefetch the cache line of array[i, j] into the outer caches; the first-level cache is in use by the kernel."""


def _register() -> None:
    """Register kernels and row operations with numba; called again because modules imported later declare more."""
    from numba import types
    from numba.extending import overload, typeof_impl

    if not _registered:
        _registered.add(0)
        typeof_impl.register(Kernel)(lambda kernel, context: types.Dispatcher(kernel.dispatcher))
        _register_prefetch()
    for number, (declared, dense, sparse) in enumerate(_declared, 1):
        if number in _registered:
            continue
        _registered.add(number)

        def choose(rows: Any, *_: Any, dense: Any = dense, sparse: Any = sparse) -> Any:
            return dense if isinstance(rows, types.Array) else sparse

        # numba binds arguments by name, so `choose` needs the signature of the implementations
        choose.__signature__ = inspect.signature(dense)  # type: ignore[attr-defined]
        overload(declared, jit_options={"fastmath": FASTMATH})(choose)


def _register_prefetch() -> None:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic, overload
    from numba.np import arrayobj

    @intrinsic
    def prefetch_line(typing_context, array, i, j):  # type: ignore[no-untyped-def]
        def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kind = signature.args[0]
            structure = arrayobj.make_array(kind)(context, builder, arguments[0])
            indices = [context.cast(builder, arguments[1 + k], signature.args[1 + k], types.intp) for k in (0, 1)]
            pointer = cgutils.get_item_pointer(context, builder, kind, structure, indices, wraparound=False)
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            instruction = builder.module.declare_intrinsic(
                "llvm.prefetch", (byte,), ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            )
            builder.call(instruction, [builder.bitcast(pointer, byte), word(0), word(1), word(1)])
            return context.get_dummy_value()

        return types.void(array, i, j), build

    overload(prefetch)(lambda array, i, j: lambda array, i, j: prefetch_line(array, i, j))  # type: ignore[call-arg]
