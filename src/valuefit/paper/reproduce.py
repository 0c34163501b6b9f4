"""`valuefit reproduce`: run an experiment with a progress bar, write its figure and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from valuefit.atomic import check_target
from valuefit.extras import need
from valuefit.paper.definition import load_experiment
from valuefit.paper.experiment import run_experiment
from valuefit.paper.plots import draw, outputs, table, write_tables
from valuefit.paper.table1 import OUTPUTS, run_table1


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar; yields the function (description, completed fraction) that updates it."""
    columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("starting", total=1.0)
        yield lambda text, fraction: bars.update(bar, description=text, completed=fraction)


def _prepare_folder(folder: Path, names: Iterable[str]) -> None:
    """Create the output folder, and check that these files, and those of runs, can be written, before the work."""
    need("matplotlib", "plot", "A figure")
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"The folder {str(folder / 'runs')[:200]} cannot be created: {error.strerror}.") from error
    for name in (*names, "runs/run.json"):
        check_target(folder / name, force=True)


def _reproduce_table1(folder: Path, quick: bool) -> Path:
    console = Console()
    _prepare_folder(folder, OUTPUTS)
    with _progress(console) as progress:
        run_table1(folder, quick=quick, progress=progress)
    console.print((folder / "table.md").read_text(), soft_wrap=True, markup=False, highlight=False)
    console.print(f"Written: {folder}/table.md, table-1.png, table-1.svg")
    return folder


def reproduce_experiment(name: str, *, out: str | None, quick: bool, jobs: int, seed: int) -> Path:
    """Run an experiment, write its figure and tables, print a summary; returns the output folder."""
    if name == "table-1":
        return _reproduce_table1(Path(out or ("results/table-1" + ("-quick" if quick else ""))), quick)
    experiment = load_experiment(name, quick=quick, seed=seed)
    folder = Path(out) if out else Path("results") / (experiment.name + ("-quick" if quick else ""))
    _prepare_folder(folder, outputs(experiment))
    console = Console()
    with _progress(console) as progress:
        curves = run_experiment(experiment, folder, jobs=jobs, progress=progress)
    written = [*draw(experiment, curves, folder), *write_tables(experiment, curves, folder)]
    shown = Table(title=experiment.title, title_justify="left")
    for column in ("panel", "grid", "method"):
        shown.add_column(column)
    for column in ("passes to 1e-2", "passes to 1e-6", "last gap", "diverged"):
        shown.add_column(column, justify="right")
    for row in table(curves):
        cells = [row.get(key) for key in ("passes to 1e-2", "passes to 1e-6")]
        texts = ["-" if value is None else f"{value:.0f}" for value in cells]
        gap = "-" if row.get("last gap") is None else f"{row['last gap']:.1e}"
        diverged = f"{row['diverged']} of {len(experiment.seeds)}" if row["diverged"] else ""
        shown.add_row(row["panel"], row["grid"], row["method"], *texts, gap, diverged)
    console.print(shown)
    console.print("Written: " + ", ".join(str(path) for path in written), soft_wrap=True)
    return folder
