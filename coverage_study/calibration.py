"""What the verdict says on logs whose truth is known: shares of "sound" in wrong and right cells, and its coverage.

A cell is wrong where its intervals cover the true value in less than 80% of the logs, right where in at least 92%.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coverage_study.records import Record
from coverage_study.statistics import covers, with_interval

WRONG_BELOW, RIGHT_FROM = 0.80, 0.92  # coverage of the true value in a cell
MAX_SOUND_IF_WRONG, MIN_SOUND_IF_RIGHT = 0.10, 0.60
MIN_SOUND_COVERAGE, MIN_TASK_SOUND_COVERAGE = 0.92, 0.85  # pooled; in every task with enough sound logs
ENOUGH_SOUND = 100  # logs of a task


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
