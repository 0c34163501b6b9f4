"""The solvers, one file each. `registry` finds new files for the CLI, the tests, the benchmark and the docs."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from typing import Any

from valuefit.problem.problem import Problem
from valuefit.solvers.solver import Solver


@cache
def registry() -> dict[str, type[Solver]]:
    """Short name -> class, for every solver in this folder, sorted by `order`."""
    found: dict[str, type[Solver]] = {}
    for module in _files():
        found |= {kind.name: kind for kind in _solvers_in(module)}
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


@cache
def _files() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def _solvers_in(module: str) -> list[type[Solver]]:
    """The solvers that a file of this folder defines; families of solvers have no name."""
    home = importlib.import_module(f"{__name__}.{module}")
    members = [member for member in vars(home).values() if isinstance(member, type) and issubclass(member, Solver)]
    return [member for member in members if member.__module__ == home.__name__ and "name" in vars(member)]


def names() -> list[str]:
    """Short names of all solvers."""
    return list(registry())


def find(solver: str | Solver | type[Solver]) -> Solver:
    """The solver of this name or class with its default settings, or the one given."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, type) and issubclass(solver, Solver):
        return solver()
    place = str(solver).replace("-", "_")
    if place in _files():  # its own file alone is imported
        for kind in _solvers_in(place):
            if kind.name == solver:
                return kind()
    if str(solver) in registry():
        return registry()[str(solver)]()
    similar = difflib.get_close_matches(str(solver).lower(), names(), n=1, cutoff=0.3)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    raise ValueError(f"There is no solver {solver!r}.{hint} The solvers are {', '.join(names())}.")


def supports(solver: Solver | type[Solver], problem: Problem) -> bool:
    """Whether the solver supports every trait of this problem."""
    return not problem.traits & solver.refusals.keys()


def refuse(solver: Solver, problem: Problem) -> None:
    """Raise ValueError if the solver does not support a trait of this problem, naming those that do."""
    for trait in sorted(problem.traits):
        if trait in solver.refusals:
            able = [name for name, kind in registry().items() if supports(kind, problem)]
            raise ValueError(
                f"{solver.name} cannot solve a problem with {trait}: {solver.refusals[trait]} "
                f"These can: {', '.join(able)}."
            )


def __getattr__(name: str) -> Any:
    for kind in registry().values():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"valuefit.solvers has no {name!r}; the classes are "
                         f"{', '.join(kind.__name__ for kind in registry().values())}.")  # fmt: skip
