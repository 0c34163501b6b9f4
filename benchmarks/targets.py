"""The targets of the grid, as lines of (target, number, met); met is None where it was not measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.engine import ORDERS
from benchmarks.tasks import OWN, PAIRED_THREADS, PASSES, PEERS, TOL

Record = dict[str, Any]
Line = tuple[str, str, bool | None]
MIN_DIRECT_FEATURES = 50  # cells with fewer features have no target for `auto` against textbook LSTD
NEGLIGIBLE_SECONDS = 0.010  # `auto` may take this long even where another solver is faster


def reached(task: Record | None) -> bool:
    """Whether the task ran and its true gap is at most the tolerance, up to rounding of the stored digits."""
    return task is not None and task.get("gap") is not None and task["gap"] <= 1.001 * TOL


def fastest(tasks: Record, names: tuple[str, ...]) -> tuple[str, float] | None:
    """Name and seconds of the fastest that reached the gap."""
    times = [(tasks[name]["seconds"], name) for name in names if reached(tasks.get(name))]
    return min(times)[::-1] if times else None


def measured(results: Record, *names: str, dense: bool | None = None) -> Iterator[tuple[str, Record, Record]]:
    """(cell, its facts, its tasks) for the cells in which all of these tasks ran."""
    for cell, facts in results["cells"].items():
        if (dense is None or facts["sparse"] != dense) and all(name in facts["tasks"] for name in names):
            yield cell, facts, facts["tasks"]


def stochastic(results: Record) -> list[Line]:
    """1: SVRG and SAGA."""
    lines: list[Line] = []
    for name in ("svrg", "saga"):
        cells = list(measured(results, name))
        if not cells:
            lines.append((f"{name}: never diverges, and its final gap is below 1", "not measured", None))
            continue
        bad = [cell for cell, _, tasks in cells if not _below_start(tasks[name])]
        rose = [cell for cell, _, tasks in cells if (tasks[name].get("worst") or 0.0) > 1.0001]
        text = f"{len(cells) - len(bad)} of {len(cells)} cells" + (f"; not in {', '.join(bad)}" if bad else "")
        text += f"; its gap exceeded 1 during the run in {', '.join(rose)}" if rose else ""
        lines.append((f"{name}: never diverges, and its final gap is below 1", text, not bad))
        dense = list(measured(results, name, dense=True))
        slow = [f"{cell} ({_outcome(tasks[name])})" for cell, _, tasks in dense if not _within(tasks[name], PASSES)]
        part = 1 - len(slow) / max(len(dense), 1)
        text = f"{part:.0%} of {len(dense)} dense cells" + (f"; not in {', '.join(slow)}" if slow else "")
        lines.append((f"{name}: gap 1e-6 within 400 passes in at least 90% of dense cells", text, part >= 0.9))
        paper = results["cells"].get("random-mdp ridge=0", {"tasks": {}})["tasks"].get(name)
        met = None if paper is None else _within(paper, 25)
        text = "not measured" if paper is None else _outcome(paper)
        lines.append((f"{name}: within 25 passes on the paper's Random MDP", text, met))
    return lines


def krylov(results: Record) -> list[Line]:
    """2: `krylov`, not counting cells that its direct fallback solved."""
    cells = list(measured(results, "krylov", dense=True))
    if not cells:
        return [("krylov: within 30 passes in every dense cell", "not measured", None)]
    late = [
        f"{cell} ({_outcome(tasks['krylov'])})"
        for cell, _, tasks in cells
        if not _within(tasks["krylov"], 30) or fell_back(tasks["krylov"])
    ]
    most = max(tasks["krylov"].get("passes") or 0.0 for _, _, tasks in cells)
    text = f"at most {most:.1f} passes in {len(cells)} cells" + (f"; not in {', '.join(late)}" if late else "")
    return [("krylov: within 30 passes in every dense cell", text, not late)]


def fell_back(task: Record) -> bool:
    """Whether krylov's direct fallback solved the cell, which its message reports."""
    return "solved directly" in (task.get("message") or "")


def automatic(results: Record) -> list[Line]:
    """3: `auto` against our other solvers and other implementations; if it did not run, our fastest solver instead."""
    cells = list(measured(results, "auto"))
    who = "auto" if cells else "our fastest solver (auto was not run)"
    lines: list[Line] = []
    if cells:
        for group, others, factor in (("our solvers", OWN[:-1], 1.15), ("other implementations", PEERS, 1.05)):
            ratios = {cell: _over(tasks, others, factor) for cell, _, tasks in cells}
            over = [f"{cell} ({text})" for cell, (text, met) in ratios.items() if not met]
            text = f"{len(cells) - len(over)} of {len(cells)} cells" + (f"; not in {', '.join(over)}" if over else "")
            lines.append((f"auto: at most {factor} times the fastest of {group}, or 10 ms", text, not over))
    for cell, facts, _ in measured(results, "paired@1"):
        if facts["d"] >= MIN_DIRECT_FEATURES:
            lines += [_paired(cell, facts["tasks"], count) for count in PAIRED_THREADS]
    for cell, facts, tasks in measured(results, "textbook"):
        if facts["kind"] == "direct":
            continue
        if facts["kind"] == "random-mdp":
            lines.append(_faster(who, cell, tasks, "", 10.0))
        elif not facts["sparse"] and facts["d"] >= 1000:
            lines.append(_faster(who, cell, tasks, "", 2.5))
            if "textbook@2" in tasks:
                lines.append(_faster(who, cell, tasks, "@2", 1.5))
    return lines


def _paired(cell: str, tasks: Record, threads: int) -> Line:
    """The target of the alternating runs on this many threads."""
    what = f"auto: seconds of textbook LSTD over auto at least 0.95 (median of pairs), {cell}, threads: {threads}"
    ratio = tasks.get(f"paired@{threads}", {}).get("ratio")
    return (what, "not measured", None) if ratio is None else (what, f"{ratio:.2f}", ratio >= 0.95)


def _over(tasks: Record, others: tuple[str, ...], factor: float) -> tuple[str, bool]:
    best, mine = fastest(tasks, others), tasks["auto"]
    if best is None or not reached(mine):
        return _outcome(mine), reached(mine)
    return f"{mine['seconds'] / best[1]:.2f} of {best[0]}", mine["seconds"] <= max(factor * best[1], NEGLIGIBLE_SECONDS)


def _faster(who: str, cell: str, tasks: Record, threads: str, wanted: float) -> Line:
    own = [name + threads for name in (("auto",) if "auto" in tasks else OWN) if name + threads in tasks]
    best, book = fastest(tasks, tuple(own)), tasks["textbook" + threads]
    target = (
        f"{who}: at least {wanted:g}x faster than textbook LSTD, {cell}, {'two threads' if threads else 'one thread'}"
    )
    if best is None or book.get("seconds") is None:
        return target, "not measured" if best else "none reached the gap", None if best else False
    ratio = book["seconds"] / best[1]
    return target, f"{ratio:.2f}x ({best[0]})", ratio >= wanted


def engine(results: Record) -> list[Line]:
    """4: rates of matrix products and updates."""
    lines: list[Line] = []
    for cell, facts, tasks in measured(results, "lstd", "dgemm"):
        if not reached(tasks["lstd"]):
            lines.append((f"lstd: 80% of the dgemm rate, {cell}", _outcome(tasks["lstd"]), False))
            continue
        n, d = facts["n"], facts["d"]
        rate = (2 * n * d**2 + 2 * d**3 / 3) / tasks["lstd"]["seconds"]
        share = rate / tasks["dgemm"]["rate"]
        lines.append((f"lstd: 80% of the dgemm rate, {cell}", f"{share:.0%}", share >= 0.8))
    figures = results["engine"]
    for name in ("svrg", "saga"):
        floor = f"{name}: update in blocks at most 3.5x the memory floor"
        speed = f"{name}: update in blocks at least 1.6x faster on float32"
        if figures is None or f"{name} blocks float64" not in figures:
            lines += [(floor, "not measured", None), (speed, "not measured", None)]
            continue
        over = {order: figures[f"{name} {order} float64"]["over_floor"] for order in ORDERS}
        faster = {order: figures[f"{name} {order} speed-up"] for order in ORDERS}
        lines += [
            (floor, _by_order(over), over["blocks"] <= 3.5),
            (speed, _by_order(faster), faster["blocks"] >= 1.6),
        ]
    return lines


def statistical(results: Record) -> list[Line]:
    """5: the statistical tolerance, against the error on a held-out log."""
    target = "within 3x of the passes at which the held-out error stops improving"
    runs = [
        (f"{cell} {name}", run)
        for cell, _, tasks in measured(results, "statistical")
        for name, run in tasks["statistical"].get("solvers", {}).items()
    ]
    if not runs:
        return [(target, "not measured", None)]
    ratios = {where: run["passes"] / max(run["best"], 1.0) for where, run in runs}
    off = [f"{where} ({ratio:.2g}x)" for where, ratio in ratios.items() if not 1 / 3 <= ratio <= 3]
    later = [where for where, run in runs if run["passes"] > run["full"]]
    middle = statistics.median(ratios.values())
    text = f"median {middle:.2f}x in {len(runs)} runs" + (f"; not in {', '.join(off)}" if off else "")
    never = f"later in {', '.join(later)}" if later else f"later in none of {len(runs)} runs"
    return [(target, text, not off), ("never later than tol=1e-6", never, not later)]


TARGETS = {
    "1. SVRG and SAGA": stochastic,
    "2. krylov": krylov,
    "3. auto": automatic,
    "4. Rates": engine,
    '5. tol="statistical"': statistical,
}


def _by_order(ratios: dict[str, float]) -> str:
    """The ratio for blocks, with the others in parentheses."""
    others = ", ".join(f"{order} {ratio:.2f}x" for order, ratio in ratios.items() if order != "blocks")
    return f"{ratios['blocks']:.2f}x ({others})"


def _below_start(task: Record) -> bool:
    return task.get("status") != "diverged" and task.get("gap") is not None and task["gap"] < 1.0


def _within(task: Record, passes: float) -> bool:
    return task.get("status") == "converged" and reached(task) and task["passes"] <= passes


def _outcome(task: Record) -> str:
    if task.get("passes") is None:
        return str(task.get("status"))
    gap = "" if task.get("gap") is None else f", gap {task['gap']:.1e}"
    return f"{task['status']} at {task['passes']:.0f} passes{gap}"
