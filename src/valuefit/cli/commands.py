"""The commands `evaluate` and `convert`: run them, print the result, write the output files."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from valuefit.atomic import check_target, write_bytes
from valuefit.cli.config import Settings, config_text
from valuefit.cli.console import cli_facts, cli_message, one_line, print_tables, printable
from valuefit.cli.options import EXIT_DO_NOT_USE, EXIT_INTERRUPTED, EXIT_NOT_CONVERGED
from valuefit.data.load import load
from valuefit.data.save import check_save, save
from valuefit.data.transitions import Transitions
from valuefit.datasets.example import example_log
from valuefit.engine.loop import Progress as SolverProgress
from valuefit.evaluation.evaluation import Evaluation, evaluate
from valuefit.evaluation.policy import FILES, Policy, find_policy, read_numbers
from valuefit.evaluation.text import summary
from valuefit.extras import need
from valuefit.messages import shown
from valuefit.typing import Array


def run_evaluate(settings: Settings, write_config: str | None) -> int:
    """Evaluate, print the result, write the requested files; returns the exit code.

    The result is printed before any file is written, so that a failed write does not lose it.
    """
    check_outputs(settings, write_config, [settings.policy])
    if settings.log is None and (settings.columns or settings.cluster):
        raise ValueError("--columns and --cluster name columns of a log, but no LOG is given.")
    console = Console()
    show_progress = sys.stdout.isatty() and not settings.json and not settings.quiet
    with progress_bar(console, settings.max_passes, enabled=show_progress) as callback:
        log = example_log() if settings.log is None else load_log(settings)
        evaluation = evaluate_with(log, settings, callback)
    print_evaluation(evaluation, settings, console)
    for kind, path in write_outputs(evaluation, settings, write_config):
        if not settings.json and not settings.quiet:
            click.echo(printable(f"{kind}: {path}"))
    status = evaluation.result.status
    if settings.strict and status != "interrupted" and evaluation.verdict.level == "do not use":
        return EXIT_DO_NOT_USE
    return {"converged": 0, "interrupted": EXIT_INTERRUPTED}.get(status, EXIT_NOT_CONVERGED)


def load_log(settings: Settings) -> Transitions:
    """The log of the settings, with the column of its clusters."""
    columns = settings.columns if settings.cluster is None else {**settings.columns, "cluster": settings.cluster}
    return load(settings.log, columns=columns or None)


def evaluate_with(log: Transitions, settings: Settings, callback: Callable[[SolverProgress], Any] | None) -> Evaluation:
    """Evaluate a log with the settings of the command line."""
    return evaluate(
        log,
        features=settings.features,
        discount=settings.discount,
        policy=None if settings.policy is None else load_policy(settings.policy),
        trace=settings.trace,
        ridge=settings.ridge,
        penalty=settings.penalty,
        values=settings.values,
        solver=settings.solver,
        tol=settings.tol,
        max_passes=settings.max_passes,
        seed=settings.seed,
        starts=None if settings.starts is None else read_starts(Path(settings.starts), log),
        interval=settings.interval,  # type: ignore[arg-type]  # one of CHOICES
        level=settings.level,
        checks=settings.checks,
        callback=callback,
    )


def print_evaluation(evaluation: Evaluation, settings: Settings, console: Console) -> None:
    """Print JSON or one line if requested; otherwise tables on a terminal, plain text in a pipe or file."""
    facts = evaluation.to_dict()
    if settings.json:
        del facts["solver"]["seconds"]  # the output of equal runs must be equal
        click.echo(json.dumps(facts, allow_nan=False, indent=2).replace("\x7f", "\\u007f"))
        return
    facts = cli_facts(facts)
    if settings.quiet:
        click.echo(one_line(facts))
    elif sys.stdout.isatty():
        print_tables(facts, printable(evaluation.log.source), console)
        click.echo()
    else:
        click.echo(summary(facts) + "\n")


def write_outputs(evaluation: Evaluation, settings: Settings, write_config: str | None) -> Iterator[tuple[str, str]]:
    """Write the requested files; yields the kind and the path of each."""
    if settings.report is not None:
        yield "Report", str(evaluation.report(settings.report, force=settings.force))
    if settings.save is not None:
        yield "Evaluation", str(evaluation.save(settings.save, force=settings.force))
    if write_config is not None:
        path = Path(write_config)
        yield "Settings", str(write_bytes(path, config_text(settings, path.parent).encode()))


def check_outputs(settings: Settings, write_config: str | None, policies: Sequence[str | None]) -> None:
    """Raise ValueError for output paths that cannot be written, before any work is done."""
    outputs = {"--report": settings.report, "--save": settings.save, "--write-config": write_config}
    inputs = [*settings.logs(), *policies, settings.starts]
    used = {os.path.realpath(path): "the input" for path in inputs if path}
    for option, name in outputs.items():
        if name is None:
            continue
        path = Path(name)
        if option == "--report":
            need("jinja2", "plot", "A report")
        if option == "--report" and path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"The report is an HTML page, so {shown(name)} should end in .html.")
        other = used.setdefault(os.path.realpath(path), option)
        if other != option:
            raise ValueError(f"{option} would overwrite {other}: both are {name!r}. Choose another name.")
        check_target(path, force=settings.force)


def load_policy(name: str) -> Policy:
    """The policy with this name; an exception in its code becomes a ValueError with file and line."""
    policy = find_policy(name, allow_code=True)  # `config.merge` has rejected code named only in a TOML file
    if policy.function is None:
        return policy

    def guarded(*arguments: Array) -> Any:
        assert policy.function is not None
        try:
            return policy.function(*arguments)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise ValueError(
                f"The policy {name} failed with {type(error).__name__}: {error} ({last.filename}, line {last.lineno})."
            ) from error

    return replace(policy, function=guarded)


def read_starts(path: Path, log: Transitions) -> Array:
    """Read the observations to average over, one per row, from a .npy, .csv or .txt file."""
    if path.suffix.lower() not in FILES:
        raise ValueError(f"Starts are read from {', '.join(FILES)}, but the file is {shown(str(path))}.")
    starts = read_numbers(path, "file of starts")
    shape = log.observations.shape[1:]
    if starts.shape[1:] != shape and not (shape == () and starts.shape[1:] == (1,)):
        raise ValueError(
            f"A start in {str(path)!r} has shape {starts.shape[1:]}, but an observation of the log has {shape}. Give "
            "one row per start, with the columns of an observation."
        )
    return starts


@contextmanager
def progress_bar(
    console: Console, max_passes: float, *, enabled: bool
) -> Iterator[Callable[[SolverProgress], Any] | None]:
    """Show a transient bar of passes; yields the callback that updates it, None if not enabled."""
    if not enabled:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} passes")
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("Reading", total=None)
        yield lambda progress: bars.update(
            bar, description="Solving", total=max_passes, completed=min(progress.passes, max_passes)
        )


def run_convert(source: str | list[str], target: str, *, columns: dict[str, Any], force: bool) -> None:
    """Read a log, write it in another format, and print the notes and warnings of the reader."""
    check_save(Path(target), force=force)
    log = load(source, columns=columns or None)
    save(log, target, force=force)
    for kind, sentences in (("Note", log.notes), ("Warning", log.warnings)):
        for sentence in sentences:
            click.echo(f"{kind}: {cli_message(sentence)}")
    click.echo(printable(f"Written: {target} ({len(log):,} steps in {len(log.episodes):,} episodes)"))
