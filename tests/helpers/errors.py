"""Errors of a log in memory, for tests that have its rows."""

from __future__ import annotations

from typing import Any

from valuefit.inference.adjoints import Equations
from valuefit.inference.error_estimate import Kind
from valuefit.inference.errors import Errors
from valuefit.inference.shards import Shard


def errors_of(problem: Any, theta: Any, episode: Any, kind: Kind = "cr3") -> Errors:
    """The errors at these weights, whose clusters are episodes, or blocks of a single one."""
    return Errors.in_memory(Equations.of(problem, theta), Shard.of_log(problem, episode), kind)


def moved(errors: Errors, theta: Any) -> Errors:
    """The same errors at other weights; factorisations and adjoints are shared."""
    return Errors.in_memory(errors.equations.at(theta), errors.whole.shard, errors.kind)
