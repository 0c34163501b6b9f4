"""Writes docs/coverage.md, from the tables of the designs and of the verdict, and its figure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from coverage_study.calibration import LeftOut, Row
from coverage_study.designs import DESIGNS, SECTIONS
from coverage_study.records import FOLDER, ROOT
from coverage_study.statistics import RIGHT_COVERAGE, RIGHT_SIZE, Summary
from valuefit.atomic import write_bytes

PAGE = ROOT / "docs" / "coverage.md"
FIGURE = ROOT / "docs" / "figures" / "coverage.png"
WORDS = Path(__file__).with_name("words.md")  # written by hand: what the tables show, and what they miss
MARK = {True: "met", False: "**missed**"}


def percent(share: float | None, digits: int = 0) -> str:
    return "" if share is None else f"{100 * share:.{digits}f}%"


def design_lines(summaries: dict[str, Summary], section: str) -> list[str]:
    """The table of one section."""
    papers = section == "published"
    lines = [
        "| design | logs | nu | coverage | 99.9% | length | warned | verdict | 0.1 |"
        + (" published |" if papers else "")
        + " rule |",
        "|---|---|---|---|---|---|---|---|---|" + ("---|" if papers else "") + "---|",
    ]
    for name, summary in summaries.items():
        design = DESIGNS[name]
        if design.section != section:
            continue
        low, high = summary.coverage.interval
        lines.append(
            f"| {name} | {summary.replications} | {summary.effective_episodes:.3g} | "
            f"{percent(summary.coverage.value, 1)} | {100 * low:.1f} to {100 * high:.1f} | {summary.length:.3g} | "
            f"{percent(summary.warned)} | {summary.level} | {percent(design.before, 1)} |"
            + (f" {design.published} |" if papers else "")
            + f" {MARK[summary.met]} |"
        )
    return lines


def size_lines(summaries: dict[str, Summary]) -> list[str]:
    """How often each test rejects at 5%, before the correction: on nulls the size, else the power."""
    names = list(dict.fromkeys(name for summary in summaries.values() for name in summary.sizes))
    if not names:
        return ["No check has a p-value."]
    lines = ["| design | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for design, summary in summaries.items():
        null = DESIGNS[design].section == "null"
        entries = []
        for name in names:
            share = summary.sizes.get(name)
            wrong = null and share is not None and share.surely_outside(*RIGHT_SIZE)
            text = percent(None if share is None else share.value, 1)
            entries.append(f"**{text}**" if wrong else text)
        lines.append(f"| {design} | " + " | ".join(entries) + " |")
    return lines


def verdict_lines(rows: Sequence[Row]) -> list[str]:
    """The table of the verdict, by task."""
    lines = [
        "| task | wrong, right, cells | logs | sound if wrong | sound if right | coverage of sound | sound | rule |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.title} | {row.wrong_cells}, {row.right_cells}, {row.cells} | {row.logs} | "
            f"{percent(row.sound_if_wrong)} | {percent(row.sound_if_right)} | "
            f"{percent(row.sound_coverage, 1)} | {row.sound_logs} | {MARK[row.met]} |"
        )
    return lines


def left_out_lines(found: Sequence[LeftOut]) -> list[str]:
    """What a fit of two constants to the other tasks would give on each task, next to the fixed ones."""
    lines = [
        "| task left out | level | standard errors | sound if wrong | sound if right | coverage of sound | "
        "fixed: sound if wrong | if right | coverage |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for chosen, fitted, fixed in found:
        shares = (
            percent(share, digits)
            for row in (fitted, fixed)
            for share, digits in ((row.sound_if_wrong, 0), (row.sound_if_right, 0), (row.sound_coverage, 1))
        )
        lines.append(f"| {fixed.title} | {percent(chosen.level)} | {chosen.size:g} | {' | '.join(shares)} |")
    return lines


def write(summaries: dict[str, Summary]) -> Path:
    """Store the tables of the designs, draw the figure and write the page."""
    tables = {section: design_lines(summaries, section) for section in SECTIONS}
    tables["tests"] = size_lines(
        {name: summary for name, summary in summaries.items() if DESIGNS[name].section in ("null", "misspecified")}
    )
    draw(summaries)
    return _store(tables)


def write_verdicts(tables: dict[str, list[Row]], left_out: Sequence[LeftOut]) -> Path:
    """Store the tables of the verdict and write the page."""
    lines = {title: verdict_lines(rows) for title, rows in tables.items()}
    return _store({**lines, "left_out": left_out_lines(left_out)})


def _store(tables: dict[str, list[str]]) -> Path:
    """Keep these tables next to the records, so that each command rewrites its part of the page alone."""
    stored = FOLDER / "tables.json"
    every = {**(json.loads(stored.read_text()) if stored.exists() else {}), **tables}
    stored.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(stored, json.dumps(every).encode())
    write_bytes(PAGE, page(every).encode())
    return PAGE


def page(tables: dict[str, list[str]]) -> str:
    """The text with its tables, where it has a line `{name}`."""
    return re.sub(r"^\{(\w+)\}$", lambda found: "\n".join(tables.get(found[1], ["Not measured."])), WORDS.read_text(),
                  flags=re.M)  # fmt: skip


def draw(summaries: dict[str, Summary]) -> None:
    """The coverage of every design with its 99.9% interval, and that of version 0.1."""
    import matplotlib.pyplot as plt

    names = list(summaries)
    _, axis = plt.subplots(figsize=(7.2, 0.19 * len(names) + 0.9), layout="constrained")
    axis.axvspan(*(100 * share for share in RIGHT_COVERAGE), color="0.9", label="accepted")
    for height, name in enumerate(reversed(names)):
        summary, before = summaries[name], DESIGNS[name].before
        low, high = summary.coverage.interval
        axis.plot([100 * low, 100 * high], [height, height], color="#3b6fb6", linewidth=1.5)
        axis.plot(100 * summary.coverage.value, height, "o", color="#3b6fb6", markersize=4)
        if before is not None:
            axis.plot(100 * before, height, "x", color="#d1782a", markersize=5)
    axis.plot([], [], "o-", color="#3b6fb6", markersize=4, label="coverage, 99.9% interval")
    axis.plot([], [], "x", color="#d1782a", linestyle="none", label="version 0.1")
    axis.axvline(95, color="0.3", linestyle="--", linewidth=1)
    axis.set_yticks(range(len(names)), reversed(names), fontsize=7)
    axis.set_ylim(-0.7, len(names) - 0.3)
    axis.set_xlabel("coverage of 95% intervals, %")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left", fontsize=8)
    plt.savefig(FIGURE, dpi=140)
    plt.close()
