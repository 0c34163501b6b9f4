"""Small charts as inline SVG: lines, bars, heat maps and an interval. The style sheet of the page sets the colours.

Every chart is built as an element tree, so all text is escaped. Its title and description are for screen readers;
parts have titles of their own, which browsers show as tooltips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np

from valuefit.typing import Array

CHART_WIDTH, CHART_HEIGHT = 440, 270  # in pixels at the default size
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 46  # margins around the plot area, in the same unit
HEAT_COLOURS = 16  # of a heat map, the classes .h0 to .h15 of the style sheet
MIN_RELATIVE_RANGE = 1e-9  # a smaller range, relative to its numbers, is rounding

Element = ElementTree.Element


def printable(text: object) -> str:
    """The text with control characters, except line ends, and characters that reorder text replaced by U+FFFD."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text))


def tick_text(value: float, step: float = 0.0) -> str:
    """The label of a tick, with as many digits as ticks at this distance (`step`) need."""
    size = max(abs(value), abs(step))
    if value == 0:
        return "0"
    if size >= 1e5 or size < 1e-3:
        digits = 2
        if step > 0:
            digits = max(2, min(12, math.floor(math.log10(abs(value))) - math.floor(math.log10(step) + 1e-9)))
        mantissa, power = f"{value:.{digits}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    if step == 0:
        return f"{value:.4g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{digits}f}"


def nice_ticks(low: float, high: float, max_steps: float = 7.5) -> tuple[list[float], float]:
    """Round numbers from low to high, in max_steps steps or fewer (at least 0.4 times as many), and the step."""
    rough = high / max_steps - low / max_steps  # the difference high - low may overflow
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)], step


def widened(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """The range with a margin, a share of its length, at both ends; never empty."""
    size = max(abs(low), abs(high))
    if high - low <= MIN_RELATIVE_RANGE * size:
        share, low, high = 1.0, low - 0.05 * size, high + 0.05 * size
    margin = share * (high - low) or 1.0
    return low - margin, high + margin


@dataclass
class Scale:
    """Maps numbers from low to high to coordinates from start to stop, linearly or logarithmically (`log`)."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(x) if self.log else x for x in (self.low, self.high, value))
        share = (value / 2 - low / 2) / (high / 2 - low / 2)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.stop - self.start), 2)

    def ticks(self) -> list[tuple[float, str]]:
        if not self.log:
            values, step = nice_ticks(self.low, self.high)
            return [(value, tick_text(value, step)) for value in values]
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        spacing = max(1, math.ceil((last - first) / 6))
        return [(10.0**power, f"1e{power}") for power in range(first, last + 1, spacing)]


class Canvas:
    """A chart under construction: title and description, then axes and marks."""

    def __init__(self, name: str, title: str, desc: str, height: float = CHART_HEIGHT) -> None:
        self.name = name
        self.svg = Element("svg", {
            "viewBox": f"0 0 {CHART_WIDTH} {height:g}", "role": "img", "class": "chart",
            "aria-labelledby": f"{name}-title {name}-desc",
        })  # fmt: skip
        self.add("title", text=title, id=f"{name}-title")
        self.add("desc", text=desc, id=f"{name}-desc")

    def add(self, tag: str, css_class: str = "", text: str = "", tip: str = "", **attributes: Any) -> Element:
        """Append an element with its class, text, tooltip and attributes, and return it."""
        texts = {name.strip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
        element = ElementTree.SubElement(self.svg, tag, {**({"class": css_class} if css_class else {}), **texts})
        if text:
            element.text = printable(text)
        if tip:
            ElementTree.SubElement(element, "title").text = printable(tip)
        return element

    def label(self, text: str, css_class: str, **attributes: Any) -> None:
        """Append a text, shortened to 34 characters; the title of the chart has all of them."""
        short = text if len(text) <= 34 else f"{text[:33]}…"
        self.add("text", css_class, short, **attributes)

    def axes(self, x: Scale, y: Scale, x_label: str, y_label: str, *, ticks: bool = True, grid: bool = True) -> None:
        """Append axes, ticks, grid lines and labels."""
        left, right, top, bottom = x.start, x.stop, y.stop, y.start
        for value, text in y.ticks():
            if grid:
                self.add("line", "grid", x1=left, x2=right, y1=y(value), y2=y(value))
            else:
                self.add("line", "axis", x1=left - 4, x2=left, y1=y(value), y2=y(value))
            self.add("text", "tick end", text, x=left - 6, y=round(y(value) + 4, 2))
        if ticks:
            for value, text in x.ticks():
                self.add("line", "axis", x1=x(value), x2=x(value), y1=bottom, y2=bottom + 4)
                self.add("text", "tick mid", text, x=x(value), y=bottom + 17)
        self.add("line", "axis", x1=left, x2=right, y1=bottom, y2=bottom)
        self.label(x_label, "label mid", x=(left + right) / 2, y=bottom + 37)
        rotation = f"rotate(-90 13 {(top + bottom) / 2:g})"
        self.label(y_label, "label mid", x=13, y=(top + bottom) / 2, transform=rotation)

    def to_svg(self) -> str:
        return ElementTree.tostring(self.svg, encoding="unicode")


def vertical_scale(low: float, high: float, *, log: bool = False) -> Scale:
    """The y scale of a chart of the default height."""
    return Scale(low, high, CHART_HEIGHT - BOTTOM, TOP, log)


def line(
    name: str, title: str, desc: str, x: Array, y: Array, *, x_label: str, y_label: str, low: Array | None = None,
    high: Array | None = None, zero: bool = False, log: bool = False,
) -> str:  # fmt: skip
    """A line through points with a band from low to high; zero: include y = 0, log: logarithmic y axis."""
    ends = [float(y.min()), float(y.max())]
    if low is not None and high is not None:
        ends += [float(low.min()), float(high.max())]
    ends += [0.0] if zero else []
    if log:
        powers = math.floor(math.log10(min(ends)) + 1e-9), math.ceil(math.log10(max(ends)) - 1e-9)
        y_scale = vertical_scale(10.0 ** powers[0], 10.0 ** max(powers[1], powers[0] + 1), log=True)
    else:
        y_scale = vertical_scale(*widened(min(ends), max(ends)))
    x_scale = Scale(*widened(float(x.min()), float(x.max()), 0.02), LEFT, CHART_WIDTH - RIGHT)
    canvas = Canvas(name, title, desc)
    canvas.axes(x_scale, y_scale, x_label, y_label)
    if zero:
        canvas.add("line", "zero", x1=x_scale.start, x2=x_scale.stop, y1=y_scale(0), y2=y_scale(0))
    x_of = [x_scale(float(value)) for value in x]
    if low is not None and high is not None:
        upper = [f"{left:g},{y_scale(float(value)):g}" for left, value in zip(x_of, high, strict=True)]
        lower = [f"{left:g},{y_scale(float(value)):g}" for left, value in zip(x_of, low, strict=True)]
        canvas.add("polygon", "band", points=" ".join(upper + lower[::-1]))
    points = [f"{left:g},{y_scale(float(value)):g}" for left, value in zip(x_of, y, strict=True)]
    canvas.add("polyline", "line", points=" ".join(points))
    if len(points) <= 60:  # more dots would overlap
        for left, argument, value in zip(x_of, x, y, strict=True):
            tip = f"{x_label} {tick_text(float(argument))}: {y_label} {float(value):.4g}"
            canvas.add("circle", "dot", tip=tip, cx=left, cy=y_scale(float(value)), r=2.6)
    return canvas.to_svg()


def histogram(
    name: str, title: str, desc: str, edges: Array, counts: Array, *, x_label: str, y_label: str,
    mark: tuple[float, str] | None = None,
) -> str:  # fmt: skip
    """Bars of counts between edges; mark: (x, label) of a vertical line."""
    y_scale = vertical_scale(0.0, 1.08 * max(float(counts.max()), 1.0))
    x_scale = Scale(float(edges[0]), float(edges[-1]), LEFT, CHART_WIDTH - RIGHT)
    canvas = Canvas(name, title, desc)
    canvas.axes(x_scale, y_scale, x_label, y_label)
    for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        if count:
            height = max(round(y_scale(0) - y_scale(count), 2), 1.0)  # visible even for one step of a million
            width = max(round(x_scale(high) - x_scale(low) - 1, 2), 0.5)
            canvas.add(
                "rect", "bar", tip=f"{low:.4g} to {high:.4g}: {count:,.10g}", x=round(x_scale(low) + 0.5, 2),
                y=round(y_scale(0) - height, 2), width=width, height=height,
            )  # fmt: skip
    if mark is not None and edges[0] <= mark[0] <= edges[-1]:
        x = x_scale(mark[0])
        canvas.add("line", "mark", x1=x, x2=x, y1=TOP, y2=y_scale(0))
        anchor, shift = ("end", -5) if x > CHART_WIDTH / 2 else ("", 5)
        canvas.label(mark[1], f"note {anchor}".strip(), x=x + shift, y=TOP + 10)
    return canvas.to_svg()


def bars(
    name: str, title: str, desc: str, labels: Sequence[str], heights: Array, *, x_label: str, y_label: str,
    tips: Sequence[str], intervals: Array | None = None,
) -> str:  # fmt: skip
    """One bar per label, up or down from 0; only every n-th label is written if they would overlap.

    intervals: (labels, 2), drawn as error bars where they are finite.
    """
    error_bars = np.full((len(heights), 2), np.nan) if intervals is None else intervals
    ends = np.concatenate([[0.0], heights, error_bars[np.isfinite(error_bars)]])
    y_scale = vertical_scale(*widened(float(ends.min()), float(ends.max())))
    x_scale = Scale(0.0, float(len(labels)), LEFT, CHART_WIDTH - RIGHT)
    canvas = Canvas(name, title, desc)
    canvas.axes(x_scale, y_scale, x_label, y_label, ticks=False)
    width = (x_scale.stop - x_scale.start) / len(labels)
    spacing = max(1, math.ceil((max(map(len, labels)) * 7.5 + 6) / width))  # a character is about 7.5 wide
    for index, (label, height, tip) in enumerate(zip(labels, heights.tolist(), tips, strict=True)):
        top, bottom = sorted((y_scale(0.0), y_scale(height)))
        canvas.add(
            "rect", "bar", tip=tip, x=round(x_scale(index) + 0.1 * width, 2), y=top, width=round(0.8 * width, 2),
            height=max(round(bottom - top, 2), 1.0),
        )  # fmt: skip
        if np.isfinite(error_bars[index]).all():
            middle, (low, high) = round(x_scale(index + 0.5), 2), map(y_scale, error_bars[index].tolist())
            canvas.add("line", "error-bar", x1=middle, x2=middle, y1=low, y2=high)
        if index % spacing == 0:
            canvas.label(label, "tick mid", x=round(x_scale(index + 0.5), 2), y=y_scale.start + 17)
    canvas.add("line", "zero", x1=x_scale.start, x2=x_scale.stop, y1=y_scale(0.0), y2=y_scale(0.0))
    return canvas.to_svg()


def heat(
    name: str, title: str, desc: str, x_edges: Array, y_edges: Array, values: Array, counts: Array, *, x_label: str,
    y_label: str, unit: str,
) -> str:  # fmt: skip
    """Cells coloured by values (x, y), hatched where counts are 0, and a colour bar."""
    height, colour_bar = 330, 66
    x_scale = Scale(float(x_edges[0]), float(x_edges[-1]), LEFT, CHART_WIDTH - RIGHT - colour_bar)
    y_scale = Scale(float(y_edges[0]), float(y_edges[-1]), height - BOTTOM, TOP)
    canvas = Canvas(name, title, desc, height)
    pattern = canvas.add("pattern", id=f"{name}-none", width=6, height=6, patternUnits="userSpaceOnUse")
    ElementTree.SubElement(pattern, "path", {"class": "hatch", "d": "M0 6 6 0"})
    top, bottom = y_scale.stop, y_scale.start
    canvas.add(
        "rect", "ground", x=x_scale.start, y=top, width=x_scale.stop - x_scale.start, height=bottom - top,
        fill=f"url(#{name}-none)",
    )  # fmt: skip
    visited = values[counts > 0]
    low, high = float(visited.min()), float(visited.max())
    half_range = (high / 2 - low / 2) or 1.0
    colour = np.clip(((values / 2 - low / 2) / half_range * HEAT_COLOURS), 0, HEAT_COLOURS - 1)
    for i, j in np.argwhere(counts > 0).tolist():
        x, y = x_scale(float(x_edges[i])), y_scale(float(y_edges[j + 1]))
        cell = f"{x_edges[i]:.4g} to {x_edges[i + 1]:.4g}, {y_edges[j]:.4g} to {y_edges[j + 1]:.4g}"
        canvas.add(
            "rect", f"h{int(colour[i, j])}", tip=f"{cell}: {values[i, j]:.4g} ({counts[i, j]:,.10g} steps)", x=x, y=y,
            width=round(x_scale(float(x_edges[i + 1])) - x + 0.3, 2),
            height=round(y_scale(float(y_edges[j])) - y + 0.3, 2),
        )  # fmt: skip
    canvas.axes(x_scale, y_scale, x_label, y_label, grid=False)
    right, step = x_scale.stop + 16, (bottom - top) / HEAT_COLOURS
    for index in range(HEAT_COLOURS):
        canvas.add(
            "rect", f"h{index}", x=right, y=round(bottom - (index + 1) * step, 2), width=12, height=round(step + 0.3, 2)
        )
    scale = Scale(*((low, high) if high > low else widened(low, high)), bottom, top)
    for value, text in scale.ticks():
        canvas.add("text", "tick", text, x=right + 17, y=round(scale(value) + 4, 2))
    canvas.label(unit, "label end", x=CHART_WIDTH - 2, y=bottom + 37)
    return canvas.to_svg()


def interval(name: str, title: str, desc: str, estimate: float, low: float, high: float, *, x_label: str) -> str:
    """One estimate with its interval on a line."""
    height = 92
    x_scale = Scale(*widened(low, high, 0.45), 14, CHART_WIDTH - 14)
    canvas = Canvas(name, title, desc, height)
    for value, text in x_scale.ticks():
        canvas.add("line", "grid", x1=x_scale(value), x2=x_scale(value), y1=8, y2=48)
        canvas.add("text", "tick mid", text, x=x_scale(value), y=64)
    canvas.add("line", "axis", x1=x_scale.start, x2=x_scale.stop, y1=48, y2=48)
    canvas.add("line", "whisker", x1=x_scale(low), x2=x_scale(high), y1=28, y2=28)
    for end in (low, high):
        canvas.add("line", "whisker", x1=x_scale(end), x2=x_scale(end), y1=21, y2=35)
    canvas.add("circle", "dot big", tip=f"{estimate:.5g}", cx=x_scale(estimate), cy=28, r=6)
    canvas.add("text", "label mid", x_label, x=CHART_WIDTH / 2, y=84)
    return canvas.to_svg()
