"""What the verdict says on logs whose truth is known: shares of "sound" in wrong and right cells, and its coverage.

A cell is wrong where its intervals cover the true value in less than 80% of the logs, right where in at least 92%.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from coverage_study.records import Record
from coverage_study.statistics import covers, with_interval
from valuefit.checks.check import TEST_LEVEL, holm, matters
from valuefit.inference.error_estimate import MATERIAL_SIZE

WRONG_BELOW, RIGHT_FROM = 0.80, 0.92  # coverage of the true value in a cell
MAX_SOUND_IF_WRONG, MIN_SOUND_IF_RIGHT = 0.10, 0.60
MIN_SOUND_COVERAGE, MIN_TASK_SOUND_COVERAGE = 0.92, 0.85  # pooled; in every task with enough sound logs
ENOUGH_SOUND = 100  # logs of a task
LEVELS, SIZES = (0.01, TEST_LEVEL, 0.1), (0.0, 0.25, MATERIAL_SIZE, 1.0, 2.0)  # among which a fit would choose


class Key(NamedTuple):
    """A cell: a task, its number of episodes, its route and the name of its features."""

    task: str
    episodes: int
    route: str
    features: str

    @property
    def name(self) -> str:
        return f"{self.task}-{self.episodes}-{self.route}-{self.features}"


@dataclass(frozen=True)
class Found:
    """What the logs of a cell showed. A log without an interval covers nothing and is not counted."""

    key: Key
    records: Sequence[Record]

    @property
    def coverage(self) -> float | None:
        found = with_interval(self.records)
        return float(np.mean([covers(record) for record in found])) if found else None

    @property
    def kind(self) -> str:
        """Right, wrong, or between, also where no log has an interval."""
        if self.coverage is None or WRONG_BELOW <= self.coverage < RIGHT_FROM:
            return "between"
        return "wrong" if self.coverage < WRONG_BELOW else "right"

    @property
    def sound(self) -> list[Record]:
        return [record for record in with_interval(self.records) if record["level"] == "sound"]


@dataclass(frozen=True)
class Row:
    """One row of the table: shares of sound logs in wrong and right cells, coverage among the sound; None if empty.

    least_coverage: among the sound, that the rule asks for where there are 100 of them.
    """

    title: str
    wrong_cells: int
    right_cells: int
    cells: int
    logs: int
    sound_if_wrong: float | None
    sound_if_right: float | None
    sound_coverage: float | None
    sound_logs: int
    least_coverage: float = MIN_TASK_SOUND_COVERAGE

    @property
    def met(self) -> bool:
        """At most 10% sound in wrong cells, at least 60% in right ones, and enough coverage among the sound."""
        needs_coverage = self.sound_logs >= ENOUGH_SOUND and self.sound_coverage is not None
        return (
            (self.sound_if_wrong or 0.0) <= MAX_SOUND_IF_WRONG
            and (1.0 if self.sound_if_right is None else self.sound_if_right) >= MIN_SOUND_IF_RIGHT
            and (not needs_coverage or (self.sound_coverage or 0.0) >= self.least_coverage)
        )


def row_of(title: str, cells: Iterable[Found]) -> Row:
    """The row of these cells together."""
    cells = list(cells)
    by_kind = {kind: [cell for cell in cells if cell.kind == kind] for kind in ("wrong", "right")}
    shares = {
        kind: sum(len(cell.sound) for cell in found) / sum(len(cell.records) for cell in found) if found else None
        for kind, found in by_kind.items()
    }
    sound = [record for cell in cells for record in cell.sound]
    return Row(
        title, len(by_kind["wrong"]), len(by_kind["right"]), len(cells), sum(len(cell.records) for cell in cells),
        shares["wrong"], shares["right"],
        float(np.mean([covers(record) for record in sound])) if sound else None, len(sound),
    )  # fmt: skip


def rows_of(cells: Sequence[Found], names: Iterable[str], title: str) -> list[Row]:
    """A row for each of these tasks, and one for all together."""
    chosen = {name: [cell for cell in cells if cell.key.task == name] for name in names}
    found = [row_of(name, own) for name, own in chosen.items() if own]
    pooled = row_of(title, [cell for own in chosen.values() for cell in own])
    return [*found, replace(pooled, least_coverage=MIN_SOUND_COVERAGE)] if found else []


def flagged_by_check(cells: Sequence[Found]) -> dict[str, tuple[float, float]]:
    """By check, the share of logs of wrong and of right cells on which it did not pass."""
    shares: dict[str, list[float]] = {}
    for place, kind in enumerate(("wrong", "right")):
        logs = [record for cell in cells if cell.kind == kind for record in cell.records if "checks" in record]
        for record in logs:
            for name, outcome, *_ in record["checks"]:
                flagged = outcome in ("warn", "fail")
                shares.setdefault(name, [0.0, 0.0])[place] += flagged / len(logs)
    return {name: (wrong, right) for name, (wrong, right) in shares.items()}


# ---- leave one task out --------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """Of the rule: the level of all tests together, and from how many standard errors on a rejected one warns."""

    level: float = TEST_LEVEL
    size: float = MATERIAL_SIZE


class LeftOut(NamedTuple):
    """A task, the constants that a fit to the other tasks chooses, and the rows of the task with them and as it is."""

    chosen: Constants
    fitted: Row
    fixed: Row


def leave_one_out(cells: Sequence[Found], names: Iterable[str]) -> list[LeftOut]:
    """For each of these tasks, what a fit of the constants to the others would give.

    The fit takes the largest share of sound logs in right cells with at most 10% sound in wrong ones and a coverage
    of 92% among the sound.
    """
    names = list(names)
    rejudged = {
        constants: [replace(cell, records=[_rejudged(record, constants) for record in cell.records]) for cell in cells]
        for constants in map(Constants._make, product(LEVELS, SIZES))
    }
    found = []
    for name in names:
        rows = {
            constants: row_of("", [cell for cell in judged if cell.key.task in names and cell.key.task != name])
            for constants, judged in rejudged.items()
        }
        chosen = max((constants for constants in rows if _allowed(rows[constants])), default=Constants(),
                     key=lambda constants: (rows[constants].sound_if_right or 0.0, -constants.size))  # fmt: skip
        own = {constants: [cell for cell in rejudged[constants] if cell.key.task == name] for constants in rejudged}
        found.append(LeftOut(chosen, row_of(name, own[chosen]), row_of(name, own[Constants()])))
    return found


def _allowed(row: Row) -> bool:
    return (row.sound_if_wrong or 0.0) <= MAX_SOUND_IF_WRONG and (row.sound_coverage or 0.0) >= MIN_SOUND_COVERAGE


def _rejudged(record: Record, constants: Constants) -> Record:
    """The record with the verdict by these constants."""
    if "checks" not in record:
        return record
    tests = [check for check in record["checks"] if check[3] is not None]
    outcomes = [check[1] for check in record["checks"] if check[3] is None]
    for (*_, size, error), p in zip(tests, holm([check[3] for check in tests]), strict=True):
        outcomes.append("warn" if p < constants.level and matters(size, error, constants.size) else "pass")
    level = "do not use" if "fail" in outcomes else "caution" if "warn" in outcomes else "sound"
    return {**record, "level": level}
