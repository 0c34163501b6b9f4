"""The verdict on an evaluation: whether to use its estimate, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from valuefit.checks.check import Check

Level = Literal["sound", "caution", "do not use"]
LEVELS: tuple[Level, ...] = ("sound", "caution", "do not use")  # from the best to the worst


@dataclass(frozen=True)
class Verdict:
    """`level`, and the messages of the checks that are the reasons for it; none if it is "sound"."""

    level: Level
    reasons: tuple[str, ...] = ()


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """ "do not use" if a check failed, "caution" if one warned, else "sound"."""
    reasons = tuple(check.message for check in (*_with(checks, "fail"), *_with(checks, "warn")))
    if _with(checks, "fail"):
        return Verdict("do not use", reasons)
    return Verdict("caution", reasons) if reasons else Verdict("sound")


def _with(checks: Sequence[Check], outcome: str) -> list[Check]:
    return [check for check in checks if check.outcome == outcome]
