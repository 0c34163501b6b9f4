"""The budget of a solve: passes and seconds, spent and allowed; `engine.loop` ends the solve when it is exhausted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """Counts passes and seconds against `max_passes` and `max_seconds` (None: no limit)."""

    def __init__(self, max_passes: float, max_seconds: float | None) -> None:
        self.max_passes, self.max_seconds = max_passes, max_seconds
        self.passes = 0.0
        self.epoch_passes = 0.0  # passes of epochs alone, without set-up, certificates and checks
        self._began, self._paused = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start, without those spent in `paused`."""
        return time.perf_counter() - self._began - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while the history computes what needs a reference."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - start

    def exhausted(self, next_passes: float) -> tuple[str, str] | None:
        """What was spent and how to allow more, if another `next_passes` would exceed the budget; else None."""
        if self.max_seconds is not None and self.seconds >= self.max_seconds:
            return f"{self.seconds:.1f} s", "max_seconds"
        if self.passes + next_passes > self.max_passes:
            return f"{self.passes:.1f} passes", "max_passes"
        return None

    def exceeded_by(self, passes: float, seconds: float) -> str:
        """The limit that this much more work would exceed, or an empty string."""
        if self.max_seconds is not None and self.seconds + seconds > self.max_seconds:
            return "max_seconds"
        return "max_passes" if self.passes + passes > self.max_passes else ""
