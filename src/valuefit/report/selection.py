"""The figure of a selection: the criterion of every candidate with its standard error, one panel for each half."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from valuefit.atomic import check_target, write_bytes
from valuefit.evaluation.selection import REJECTED, Selection
from valuefit.extras import need
from valuefit.messages import shown

FIGURE_FORMATS = (".png", ".svg", ".pdf")


def write_figure(selection: Selection, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the figure to `path` and return the path; an existing file needs `force=True`."""
    path = Path(path)
    if path.suffix.lower() not in FIGURE_FORMATS:
        raise ValueError(f"A figure is written as {', '.join(FIGURE_FORMATS)}, but the path is {shown(str(path))}.")
    check_target(path, force=force)
    need("matplotlib", "plot", "A figure")
    from matplotlib.figure import Figure

    facts = selection.to_dict()
    halves = [
        [row for row in facts["table"] if row["half"] == half + 1 and row["criterion"] is not None]
        for half in range(len(facts["chosen"]))
    ]
    size = 4.6 * len(halves) + 1.4, 1.3 + 0.28 * max(map(len, halves))  # inches
    figure = Figure(figsize=size, layout="constrained")
    for axis, half in zip(figure.subplots(1, len(halves), squeeze=False, sharey=True)[0], halves, strict=True):
        _draw(axis, half, facts["criterion"])
        if facts["cross_fitted"]:
            axis.set_title(f"half {half[0]['half']}", fontsize=9)
    stream = io.BytesIO()
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None  # the same file for the same selection
    figure.savefig(stream, format=path.suffix[1:].lower(), dpi=150, metadata=metadata)
    return write_bytes(path, stream.getvalue(), force=force)


def _draw(axis: Any, rows: list[dict[str, Any]], label: str) -> None:
    colours = {"chosen": "#D55E00", "rejected": "#999999", "": "#0072B2"}  # a palette safe for colour blindness
    for height, row in enumerate(reversed(rows)):
        refused = row["verdict"] == REJECTED or row["stable"] is False
        kind = "chosen" if row["chosen"] else "rejected" if refused else ""
        marker = "x" if kind == "rejected" else "o"
        axis.errorbar(row["criterion"], height, xerr=row["standard_error"], fmt=marker, color=colours[kind], capsize=2)
    names = [f"{row['settings']} ({row['weights']})" for row in reversed(rows)]
    axis.set_yticks(range(len(rows)), names, fontsize=8)
    axis.set_xlabel(f"{label}, lower is better", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
