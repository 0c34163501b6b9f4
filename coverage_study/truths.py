"""Simulated policy values, stored with their standard errors; `python -m coverage_study.tasks` computes them again."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from coverage_study.worlds import Simulated

STORED = Path(__file__).with_name("truths.json")


@cache
def stored_truths() -> dict[str, Simulated]:
    """By the name of the task."""
    return {name: Simulated(*numbers) for name, numbers in json.loads(STORED.read_text()).items()}


def truth_of(name: str) -> Simulated:
    """The policy value of a task, which must have been simulated."""
    if name not in stored_truths():
        raise ValueError(f"The value of {name!r} has not been simulated: run python -m coverage_study.tasks {name}.")
    return stored_truths()[name]


def store(name: str, value: Simulated) -> None:
    """Add a value to the file."""
    numbers = {**stored_truths(), name: value}
    STORED.write_text(json.dumps({key: list(numbers[key]) for key in sorted(numbers)}, indent=1) + "\n")
    stored_truths.cache_clear()
