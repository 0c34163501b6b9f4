"""Small charts as inline SVG: lines, bars, heat maps and an interval. Colours come from the page, for light and dark.

Every chart is an element tree, so whatever text reaches it is escaped. Its title and description are what a screen
reader says in its place; parts have titles of their own, which browsers show as tips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np

from valuefit.typing import Array

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 46
LEVELS = 16  # colours of a heat map, .h0 to .h15 in the page's style
NARROW = 1e-9  # a range this small beside its numbers is a point
LONGEST = 34  # letters of a label that are drawn; titles have them all

Element = ElementTree.Element


def printable(text: object) -> str:
    """Text without characters that a page cannot hold or that reorder it; line ends stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in str(text))


def tick_text(value: float, step: float = 0.0) -> str:
    """A number beside an axis: no more digits than its neighbours need."""
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


def nice_ticks(low: float, high: float, most: float = 7.5) -> tuple[list[float], float]:
    """Round numbers from low to high, at most `most` steps and at least 0.4 times as many, and the step."""
    rough = high / most - low / most  # apart, for the difference may overflow
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)], step


def widened(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """A range with some room at both ends, never empty."""
    size = max(abs(low), abs(high))
    if high - low <= NARROW * size:
        share, low, high = 1.0, low - 0.05 * size, high + 0.05 * size
    room = share * (high - low) or 1.0
    return low - room, high + room


@dataclass
class Scale:
    """From numbers to places on the page; `log` for powers of ten."""

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
        every = max(1, math.ceil((last - first) / 6))
        return [(10.0**power, f"1e{power}") for power in range(first, last + 1, every)]


class Canvas:
    """One chart under way: a frame with axes, then marks."""

    def __init__(self, name: str, title: str, desc: str, height: float = HEIGHT) -> None:
        self.name = name
        self.svg = Element("svg", {
            "viewBox": f"0 0 {WIDTH} {height:g}", "role": "img", "class": "chart",
            "aria-labelledby": f"{name}-title {name}-desc",
        })  # fmt: skip
        self.add("title", text=title, id=f"{name}-title")
        self.add("desc", text=desc, id=f"{name}-desc")

    def add(self, tag: str, kind: str = "", text: str = "", tip: str = "", **where: Any) -> Element:
        """A mark with a class, and the words that belong to it."""
        attributes = {name.strip("_").replace("_", "-"): str(value) for name, value in where.items()}
        element = ElementTree.SubElement(self.svg, tag, {**({"class": kind} if kind else {}), **attributes})
        if text:
            element.text = printable(text)
        if tip:
            ElementTree.SubElement(element, "title").text = printable(tip)
        return element

    def label(self, text: str, kind: str, **where: Any) -> None:
        self.add("text", kind, text if len(text) <= LONGEST else text[: LONGEST - 1] + "…", **where)

    def axes(self, x: Scale, y: Scale, x_label: str, y_label: str, *, ticks: bool = True, grid: bool = True) -> None:
        """Grid lines, numbers and labels."""
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
        turned = f"rotate(-90 13 {(top + bottom) / 2:g})"
        self.label(y_label, "label mid", x=13, y=(top + bottom) / 2, transform=turned)

    def done(self) -> str:
        return ElementTree.tostring(self.svg, encoding="unicode")


def frame(low: float, high: float, *, log: bool = False) -> Scale:
    """The upright scale of a chart."""
    return Scale(low, high, HEIGHT - BOTTOM, TOP, log)


def line(
    name: str, title: str, desc: str, x: Array, y: Array, *, x_label: str, y_label: str, low: Array | None = None,
    high: Array | None = None, zero: bool = False, log: bool = False,
) -> str:  # fmt: skip
    """A line through points, with a band from low to high; `zero` keeps 0 in sight, `log` takes powers of ten."""
    ends = [float(y.min()), float(y.max())]
    if low is not None and high is not None:
        ends += [float(low.min()), float(high.max())]
    ends += [0.0] if zero else []
    if log:
        powers = math.floor(math.log10(min(ends)) + 1e-9), math.ceil(math.log10(max(ends)) - 1e-9)
        across = frame(10.0 ** powers[0], 10.0 ** max(powers[1], powers[0] + 1), log=True)
    else:
        across = frame(*widened(min(ends), max(ends)))
    along = Scale(*widened(float(x.min()), float(x.max()), 0.02), LEFT, WIDTH - RIGHT)
    canvas = Canvas(name, title, desc)
    canvas.axes(along, across, x_label, y_label)
    if zero:
        canvas.add("line", "zero", x1=along.start, x2=along.stop, y1=across(0), y2=across(0))
    places = [along(float(value)) for value in x]
    if low is not None and high is not None:
        up = [f"{place:g},{across(float(value)):g}" for place, value in zip(places, high, strict=True)]
        down = [f"{place:g},{across(float(value)):g}" for place, value in zip(places, low, strict=True)]
        canvas.add("polygon", "band", points=" ".join(up + down[::-1]))
    points = [f"{place:g},{across(float(value)):g}" for place, value in zip(places, y, strict=True)]
    canvas.add("polyline", "line", points=" ".join(points))
    if len(points) <= 60:
        for place, at, value in zip(places, x, y, strict=True):
            tip = f"{x_label} {tick_text(float(at))}: {y_label} {float(value):.4g}"
            canvas.add("circle", "dot", tip=tip, cx=place, cy=across(float(value)), r=2.6)
    return canvas.done()


def histogram(
    name: str, title: str, desc: str, edges: Array, counts: Array, *, x_label: str, y_label: str,
    mark: tuple[float, str] | None = None,
) -> str:  # fmt: skip
    """Bars of counts between edges; `mark` draws a line with words at one place."""
    across = frame(0.0, 1.08 * max(float(counts.max()), 1.0))
    along = Scale(float(edges[0]), float(edges[-1]), LEFT, WIDTH - RIGHT)
    canvas = Canvas(name, title, desc)
    canvas.axes(along, across, x_label, y_label)
    for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        if count:
            height = max(round(across(0) - across(count), 2), 1.0)  # one of a million is still to be seen
            canvas.add(
                "rect", "bar", tip=f"{low:.4g} to {high:.4g}: {count:,.10g}", x=round(along(low) + 0.5, 2),
                y=round(across(0) - height, 2), width=max(round(along(high) - along(low) - 1, 2), 0.5), height=height,
            )  # fmt: skip
    if mark is not None and edges[0] <= mark[0] <= edges[-1]:
        place = along(mark[0])
        canvas.add("line", "mark", x1=place, x2=place, y1=TOP, y2=across(0))
        side, shift = ("end", -5) if place > WIDTH / 2 else ("", 5)
        canvas.label(mark[1], f"note {side}".strip(), x=place + shift, y=TOP + 10)
    return canvas.done()


def bars(
    name: str, title: str, desc: str, labels: Sequence[str], heights: Array, *, x_label: str, y_label: str,
    tips: Sequence[str],
) -> str:  # fmt: skip
    """A bar for each label, up or down from 0; every n-th label is written where they are many."""
    across = frame(*widened(min(0.0, float(heights.min())), max(0.0, float(heights.max()))))
    along = Scale(0.0, float(len(labels)), LEFT, WIDTH - RIGHT)
    canvas = Canvas(name, title, desc)
    canvas.axes(along, across, x_label, y_label, ticks=False)
    room = (along.stop - along.start) / len(labels)
    every = max(1, math.ceil((max(map(len, labels)) * 7.5 + 6) / room))
    for place, (label, height, tip) in enumerate(zip(labels, heights.tolist(), tips, strict=True)):
        ends = sorted((across(0.0), across(height)))
        canvas.add(
            "rect", "bar", tip=tip, x=round(along(place) + 0.1 * room, 2), y=ends[0], width=round(0.8 * room, 2),
            height=max(round(ends[1] - ends[0], 2), 1.0),
        )  # fmt: skip
        if place % every == 0:
            canvas.label(label, "tick mid", x=round(along(place + 0.5), 2), y=across.start + 17)
    canvas.add("line", "zero", x1=along.start, x2=along.stop, y1=across(0.0), y2=across(0.0))
    return canvas.done()


def heat(
    name: str, title: str, desc: str, x_edges: Array, y_edges: Array, values: Array, counts: Array, *, x_label: str,
    y_label: str, unit: str,
) -> str:  # fmt: skip
    """Coloured cells of values (across, up), hatched where counts are 0, with the key of the colours beside them."""
    height, key = 330, 66
    along = Scale(float(x_edges[0]), float(x_edges[-1]), LEFT, WIDTH - RIGHT - key)
    across = Scale(float(y_edges[0]), float(y_edges[-1]), height - BOTTOM, TOP)
    canvas = Canvas(name, title, desc, height)
    pattern = canvas.add("pattern", id=f"{name}-none", width=6, height=6, patternUnits="userSpaceOnUse")
    ElementTree.SubElement(pattern, "path", {"class": "hatch", "d": "M0 6 6 0"})
    top, bottom = across.stop, across.start
    canvas.add(
        "rect", "ground", x=along.start, y=top, width=along.stop - along.start, height=bottom - top,
        fill=f"url(#{name}-none)",
    )  # fmt: skip
    seen = values[counts > 0]
    low, high = float(seen.min()), float(seen.max())
    spread = (high / 2 - low / 2) or 1.0
    level = np.clip(((values / 2 - low / 2) / spread * LEVELS), 0, LEVELS - 1)
    for i, j in np.argwhere(counts > 0).tolist():
        x, y = along(float(x_edges[i])), across(float(y_edges[j + 1]))
        words = f"{x_edges[i]:.4g} to {x_edges[i + 1]:.4g}, {y_edges[j]:.4g} to {y_edges[j + 1]:.4g}"
        canvas.add(
            "rect", f"h{int(level[i, j])}", tip=f"{words}: {values[i, j]:.4g} ({counts[i, j]:,.10g} steps)", x=x, y=y,
            width=round(along(float(x_edges[i + 1])) - x + 0.3, 2),
            height=round(across(float(y_edges[j])) - y + 0.3, 2),
        )  # fmt: skip
    canvas.axes(along, across, x_label, y_label, grid=False)
    right, step = along.stop + 16, (bottom - top) / LEVELS
    for place in range(LEVELS):
        canvas.add(
            "rect", f"h{place}", x=right, y=round(bottom - (place + 1) * step, 2), width=12, height=round(step + 0.3, 2)
        )
    scale = Scale(*((low, high) if high > low else widened(low, high)), bottom, top)
    for value, text in scale.ticks():
        canvas.add("text", "tick", text, x=right + 17, y=round(scale(value) + 4, 2))
    canvas.label(unit, "label end", x=WIDTH - 2, y=bottom + 37)
    return canvas.done()


def interval(name: str, title: str, desc: str, estimate: float, low: float, high: float, *, x_label: str) -> str:
    """One estimate with its interval on a line."""
    height = 92
    along = Scale(*widened(low, high, 0.45), 14, WIDTH - 14)
    canvas = Canvas(name, title, desc, height)
    for value, text in along.ticks():
        canvas.add("line", "grid", x1=along(value), x2=along(value), y1=8, y2=48)
        canvas.add("text", "tick mid", text, x=along(value), y=64)
    canvas.add("line", "axis", x1=along.start, x2=along.stop, y1=48, y2=48)
    canvas.add("line", "whisker", x1=along(low), x2=along(high), y1=28, y2=28)
    for end in (low, high):
        canvas.add("line", "whisker", x1=along(end), x2=along(end), y1=21, y2=35)
    canvas.add("circle", "dot big", tip=f"{estimate:.5g}", cx=along(estimate), cy=28, r=6)
    canvas.add("text", "label mid", x_label, x=WIDTH / 2, y=84)
    return canvas.done()
