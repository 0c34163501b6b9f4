"""What the command line does: evaluate a log and show the answer, or convert a log."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from valuefit.atomic import refuse_existing, write_bytes
from valuefit.cli.config import Settings, config_text
from valuefit.cli.console import cleaned, one_line, printable, sentence, show
from valuefit.data.load import load, save
from valuefit.data.transitions import Transitions
from valuefit.datasets.example import example_log
from valuefit.engine.loop import Progress as Standing
from valuefit.evaluation.evaluation import Evaluation, evaluate
from valuefit.evaluation.policy import FILES, Policy, find_policy, read_numbers
from valuefit.evaluation.text import summary
from valuefit.typing import Array

DID_NOT_CONVERGE, INTERRUPTED = 3, 130


def evaluate_log(settings: Settings, write_config: str | None) -> int:
    """Evaluate, print the answer, write what was asked for; returns the exit code.

    The answer is printed before anything is written, so that a full disk does not cost it.
    """
    check_outputs(settings, write_config)
    if settings.log is None and settings.columns:
        raise ValueError("--columns names the columns of a log, but no LOG is given.")
    console = Console()
    shown = sys.stdout.isatty() and not settings.json and not settings.quiet
    with progress(console, settings.max_passes, shown=shown) as callback:
        log = example_log() if settings.log is None else load(settings.log, columns=settings.columns or None)
        evaluation = evaluate(
            log,
            features=settings.features,
            discount=settings.discount,
            policy=None if settings.policy is None else policy_of(settings.policy),
            trace=settings.trace,
            ridge=settings.ridge,
            values=settings.values,
            solver=settings.solver,
            tol=settings.tol,
            max_passes=settings.max_passes,
            seed=settings.seed,
            starts=None if settings.starts is None else read_starts(Path(settings.starts), log),
            callback=callback,
        )
    answer(evaluation, settings, console)
    for kind, path in write(evaluation, settings, write_config):
        if not settings.json and not settings.quiet:
            click.echo(printable(f"{kind}: {path}"))
    status = evaluation.result.status
    return {"converged": 0, "interrupted": INTERRUPTED}.get(status, DID_NOT_CONVERGE)


def answer(evaluation: Evaluation, settings: Settings, console: Console) -> None:
    """One JSON object, one line, tables on a terminal, or plain text elsewhere."""
    facts = evaluation.to_dict()
    if settings.json:
        del facts["solver"]["seconds"]  # the same run gives the same bits
        click.echo(json.dumps(facts, allow_nan=False, indent=2).replace("\x7f", "\\u007f"))
        return
    facts = cleaned(facts)
    if settings.quiet:
        click.echo(one_line(facts))
    elif sys.stdout.isatty():
        show(facts, printable(evaluation.log.source), console)
        click.echo()
    else:
        click.echo(summary(facts) + "\n")


def write(evaluation: Evaluation, settings: Settings, write_config: str | None) -> Iterator[tuple[str, str]]:
    """Write what was asked for; gives what each file is and its name."""
    if settings.report is not None:
        yield "Report", str(evaluation.report(settings.report, force=settings.force))
    if settings.save is not None:
        yield "Evaluation", str(evaluation.save(settings.save, force=settings.force))
    if write_config is not None:
        path = Path(write_config)
        yield "Settings", str(write_bytes(path, config_text(settings, path.parent).encode()))


def check_outputs(settings: Settings, write_config: str | None) -> None:
    """Refuse outputs that cannot be written before any work is done."""
    targets = {"--report": settings.report, "--save": settings.save, "--write-config": write_config}
    taken = {os.path.realpath(path): "the input" for path in (settings.log, settings.policy, settings.starts) if path}
    for option, name in targets.items():
        if name is None:
            continue
        path = Path(name)
        if option == "--report" and path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"The report is an HTML page, so {name!r} should end in .html.")
        other = taken.setdefault(os.path.realpath(path), option)
        if other != option:
            raise ValueError(f"{option} would overwrite {other}: both are {name!r}. Choose another name.")
        if not path.parent.is_dir():
            raise ValueError(f"There is no folder {str(path.parent)!r} to write into. Make it first.")
        if path.is_dir():
            raise ValueError(f"{name!r} is a folder; {option} needs the name of a file.")
        refuse_existing(path, force=settings.force)


def policy_of(name: str) -> Policy:
    """The policy of this name; where its own code fails, a sentence says where."""
    policy = find_policy(name, allow_code=True)  # code that only a file asks for was refused by `settings.merge`
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
    """Observations to average over, from a file of numbers."""
    if path.suffix.lower() not in FILES:
        raise ValueError(f"Starts are read from {', '.join(FILES)}, but the file is {str(path)!r}.")
    starts = read_numbers(path, "file of starts")
    width = log.observations.shape[1:]
    if starts.shape[1:] != width and not (width == () and starts.shape[1:] == (1,)):
        raise ValueError(
            f"A start in {str(path)!r} has shape {starts.shape[1:]}, but an observation of the log has {width}. Give "
            "one row a start, its columns those of an observation."
        )
    return starts


@contextmanager
def progress(console: Console, total: float, *, shown: bool) -> Iterator[Callable[[Standing], Any] | None]:
    """A bar of passes while it solves, gone afterwards; none where nobody would see it."""
    if not shown:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} passes")
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("Reading", total=None)
        yield lambda standing: bars.update(
            bar, description="Solving", total=total, completed=min(standing.passes, total)
        )


def convert_log(source: str, target: str, *, columns: dict[str, Any], force: bool) -> None:
    """Read a log, write it in another form, and say what was assumed on the way."""
    log = load(source, columns=columns or None)
    save(log, target, force=force)
    for note in log.notes:
        click.echo(f"Note: {sentence(note)}")
    click.echo(printable(f"Written: {target} ({len(log):,} steps in {len(log.episodes):,} episodes)"))
