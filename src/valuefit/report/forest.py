"""A forest plot: several estimates with their intervals on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from valuefit.report.svg import CHART_WIDTH, Canvas, Scale, widened


class Row(NamedTuple):
    """An estimate with its label; low and high are None without an interval."""

    label: str
    estimate: float
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """The numbers, with three digits."""
        if self.low is None or self.high is None:
            return f"{self.estimate:.3g} (interval unknown)"
        return f"{self.estimate:.3g} ({self.low:.3g} to {self.high:.3g})"


def forest(name: str, title: str, desc: str, rows: Sequence[Row], *, x_label: str, zero: bool) -> str:
    """One line for each row: its label and numbers, and below them its dot and interval; zero: mark x = 0."""
    row_height, start, below, side = 42, 8, 46, 14  # in pixels at the default size
    ends = [end for row in rows for end in (row.estimate, row.low, row.high) if end is not None]
    ends += [0.0] if zero else []
    x, bottom = Scale(*widened(min(ends), max(ends)), side, CHART_WIDTH - side), start + row_height * len(rows)
    canvas = Canvas(name, title, desc, bottom + below)
    for value, text in x.ticks():
        canvas.add("line", "grid", x1=x(value), x2=x(value), y1=start, y2=bottom)
        canvas.add("text", "tick mid", text, x=x(value), y=bottom + 17)
    if zero:
        canvas.add("line", "mark", x1=x(0.0), x2=x(0.0), y1=start, y2=bottom)
    canvas.add("line", "axis", x1=x.start, x2=x.stop, y1=bottom, y2=bottom)
    canvas.label(x_label, "label mid", x=CHART_WIDTH / 2, y=bottom + 37)
    for index, row in enumerate(rows):
        top = start + row_height * index
        middle = top + 28
        canvas.label(row.label, "label halo", x=x.start, y=top + 14)
        canvas.add("text", "tick end halo", row.text, x=x.stop, y=top + 14)
        if row.low is not None and row.high is not None:
            canvas.add("line", "whisker", x1=x(row.low), x2=x(row.high), y1=middle, y2=middle)
        canvas.add("circle", "dot big", tip=f"{row.label}: {row.text}", cx=x(row.estimate), cy=middle, r=5)
    return canvas.to_svg()
