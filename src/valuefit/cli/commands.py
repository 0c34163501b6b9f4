"""The commands `evaluate` and `convert`: run them, print the result, write the output files; `compare` shares them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from valuefit.atomic import check_target, write_bytes
from valuefit.cli.config import config_text
from valuefit.cli.console import cli_facts, cli_message, escaped, one_line
from valuefit.cli.options import EXIT_DO_NOT_USE, EXIT_INTERRUPTED, EXIT_NOT_CONVERGED
from valuefit.cli.settings import Settings
from valuefit.data.load import load
from valuefit.data.save import check_save, save
from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions
from valuefit.datasets.example import example_log
from valuefit.engine.loop import Progress as SolverProgress
from valuefit.evaluation.evaluate import evaluate
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.text import summary, verdict_sentence
from valuefit.extras import need
from valuefit.messages import said, shown
from valuefit.policies.policy import FILES, find_policy, read_numbers
from valuefit.typing import Array


def run_evaluate(settings: Settings, write_config: str | None) -> int:
    """Evaluate, print the result, write the requested files; returns the exit code.

    The result is printed before any file is written, so that a failed write does not lose it.
    """
    saved = [] if settings.save is None else [settings.save]
    check_outputs(settings, saved, write_config)
    if len(settings.policy) > 1:
        raise ValueError("Several policies are given. Give one, or compare them with valuefit compare.")
    if not settings.log and (settings.columns or settings.cluster):
        raise ValueError("--columns and --cluster name columns of a log, but no LOG is given.")
    with connected(settings) as client:  # which the report reads the log with once more
        with progress_bar(settings) as callback:
            log = log_of(settings) if settings.log else example_log()
            evaluation = evaluate_with(log, settings, callback, client)
        print_evaluation(evaluation, settings)
        write_outputs(evaluation.report, dict.fromkeys(saved, evaluation), settings, write_config)
    return exit_code([evaluation], settings)


def exit_code(evaluations: Sequence[Evaluation], settings: Settings) -> int:
    """The code of the worst of these results."""
    statuses = {evaluation.result.status for evaluation in evaluations}
    if "interrupted" in statuses:
        return EXIT_INTERRUPTED
    if settings.strict and any(evaluation.verdict.level == "do not use" for evaluation in evaluations):
        return EXIT_DO_NOT_USE
    return 0 if statuses == {"converged"} else EXIT_NOT_CONVERGED


@contextmanager
def connected(settings: Settings) -> Iterator[Any]:
    """A client of the Dask scheduler of the settings, or None."""
    if settings.scheduler is None:
        yield None
        return
    distributed = need("distributed", "dask", "A Dask scheduler")
    try:
        client = distributed.Client(settings.scheduler, timeout="10s")
    except (OSError, ValueError) as error:
        raise ValueError(f"No Dask scheduler answers at {shown(settings.scheduler)} ({said(error)}).") from error
    with client:
        yield client


def log_of(settings: Settings) -> Any:
    """The log of the settings, with the column of its clusters."""
    columns = settings.columns if settings.cluster is None else {**settings.columns, "cluster": settings.cluster}
    memory = "stream" if settings.scheduler is not None else settings.memory
    return load(
        one_or_several(settings.log),
        columns=columns or None,
        limit=settings.limit,
        memory=memory,
        missing=settings.missing,
    )


def one_or_several(paths: tuple[str, ...]) -> str | list[str]:
    """The only path, which may be a folder or a pattern, or a list of files."""
    return paths[0] if len(paths) == 1 else list(paths)


def evaluate_with(
    log: Any, settings: Settings, callback: Callable[[SolverProgress], Any] | None, client: Any = None
) -> Evaluation:
    """Evaluate a log with the settings of the command line, which have at most one policy."""
    # `config.settings_of` has rejected code named only in a TOML file
    policy = next((find_policy(name, allow_code=True) for name in settings.policy), None)
    example = next(iter(log.shards)).read() if isinstance(log, ShardedLog) else log
    return evaluate(
        log,
        features=settings.features,
        discount=settings.discount,
        policy=policy,
        trace=settings.trace,
        ridge=settings.ridge,
        values=settings.values,
        solver=settings.solver,
        tol=settings.tol,
        max_passes=settings.max_passes,
        seed=settings.seed,
        starts=None if settings.starts is None else read_starts(Path(settings.starts), example),
        interval=settings.interval,
        level=settings.level,
        reward_range=settings.reward_range,
        checks=settings.checks,
        client=client,
        callback=callback,
        device=settings.device,
        checkpoint=settings.checkpoint,
    )


def print_evaluation(evaluation: Evaluation, settings: Settings) -> None:
    """Print JSON or one line if requested; otherwise the summary, on a terminal with a colour of the verdict."""
    facts = evaluation.to_dict()
    if settings.json:
        del facts["solver"]["seconds"]  # the output of equal runs must be equal
        print_json(facts)
        return
    facts = cli_facts(facts)
    if settings.quiet:
        click.echo(one_line(facts))
        return
    text, verdict = summary(facts), verdict_sentence(facts)
    if sys.stdout.isatty():
        click.secho(escaped(evaluation.log.source), dim=True)
        colour = {"sound": "green", "caution": "yellow", "do not use": "red"}[facts["verdict"]["level"]]
        text = text.replace(verdict, click.style(verdict, fg=colour, bold=True), 1)
    click.echo(text + "\n")


def print_json(facts: dict[str, Any]) -> None:
    """Print plain data as JSON that is safe on a terminal."""
    click.echo(json.dumps(facts, allow_nan=False, indent=2).replace("\x7f", "\\u007f"))


def write_outputs(
    report: Callable[..., Path], saved: dict[str, Evaluation], settings: Settings, write_config: str | None
) -> None:
    """Write the requested files, and print the kind and path of each unless the output must be short.

    report: the method that writes the report. saved: the evaluations to save, by path.
    """

    def written(kind: str, path: Path) -> None:
        if not settings.json and not settings.quiet:
            click.echo(escaped(f"{kind}: {path}"))

    if settings.report is not None:
        written("Report", report(settings.report, force=settings.force))
    for name, evaluation in saved.items():
        written("Evaluation", evaluation.save(name, force=settings.force))
    if write_config is not None:
        path = Path(write_config)
        written("Settings", write_bytes(path, config_text(settings, path.parent).encode()))


def check_outputs(settings: Settings, saved: Sequence[str], write_config: str | None) -> None:
    """Raise ValueError for output paths that cannot be written, before any work is done."""
    outputs = [("--report", settings.report), *(("--save", path) for path in saved), ("--write-config", write_config)]
    inputs = [*settings.log, *settings.policy, settings.starts]
    used = {os.path.realpath(path): "the input" for path in inputs if path}
    for option, name in outputs:
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
def progress_bar(settings: Settings) -> Iterator[Callable[[SolverProgress], Any] | None]:
    """Show a transient bar of passes on a terminal; yields the callback that updates it, None without a bar."""
    max_passes = settings.max_passes
    if not sys.stdout.isatty() or settings.json or settings.quiet:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} passes")
    with Progress(*columns, TimeElapsedColumn(), transient=True) as bars:
        bar = bars.add_task("Reading", total=None)
        yield lambda progress: bars.update(
            bar, description="Solving", total=max_passes, completed=min(progress.passes, max_passes)
        )


def run_convert(
    source: tuple[str, ...], target: str, *, columns: dict[str, Any], missing: str, limit: str | None, force: bool
) -> None:
    """Read a log, write it in another format, and print the notes and warnings of the reader."""
    check_save(Path(target), force=force)
    log = load(one_or_several(source), columns=columns or None, limit=limit, missing=missing)
    save(log, target, force=force)
    counts = log.continuity
    notes = [*log.notes, *[f"{counts.apart_text}."] * bool(counts.apart), *[f"{counts.cut_text}."] * bool(counts.cut)]
    for kind, sentences in (("Note", notes), ("Warning", log.warnings)):
        for sentence in sentences:
            click.echo(f"{kind}: {cli_message(sentence)}")
    click.echo(escaped(f"Written: {target} ({len(log):,} steps in {len(log.episodes):,} episodes)"))
