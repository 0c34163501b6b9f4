"""Command and option classes: options under headings, tab completion, errors as one sentence and an exit code."""

from __future__ import annotations

import os
import re
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from valuefit.cli.config import CHOICES, MAX_SEED, default_of
from valuefit.features import built_in
from valuefit.messages import said

EXIT_NOT_CONVERGED, EXIT_DO_NOT_USE, EXIT_INTERRUPTED = 3, 4, 130  # 130 is the shell's code for SIGINT
FEATURE_NAMES = ("auto", *built_in())
PATH = click.Path(readable=False)  # not tested by click, which finds a folder unreadable while it is being replaced
SECTIONS = {
    "The log and the policy": ("columns", "missing", "policy", "starts", "memory", "limit", "scheduler", "checkpoint"),
    "The value function": ("features", "discount", "values", "trace", "ridge"),
    "The interval": ("interval", "level", "reward_range", "cluster"),
    "The solver": ("solver", "tol", "max_passes", "seed", "device"),
    "The checks": ("checks", "strict"),
    "The output": ("report", "save", "json", "quiet", "force"),
    "A file of options": ("config", "write_config"),
}


class Commands(click.Group):
    """A group whose commands end with a message and exit code 1 on wrong input, 130 on Ctrl-C, without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of definition instead of by name."""
        return list(self.commands)

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run a command; also --help and --version, which `invoke` does not see."""
        replace_closed_streams()
        try:
            return super().main(*arguments, **settings)
        except OSError as error:
            click.echo(f"Error: The output cannot be written: {error.strerror or error}.", err=True)
            raise SystemExit(1) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            text = error.format_message()
            if text.isprintable() and len(text) <= 400:
                raise
            # it quotes an argument, or lists choices on lines of their own
            text = re.sub(r"\S{60,}", lambda word: f"{word[0][:57]}...", text)
            raise click.UsageError(said(click.UsageError(text)), error.ctx) from None
        except BrokenPipeError:  # click handles a closed pipe
            raise
        except (ValueError, OSError, ImportError, MemoryError) as error:
            from valuefit.cli.console import cli_message  # imports rich, so only on failure

            system = isinstance(error, OSError) and error.errno is not None  # which quotes the whole path
            text = said(error) if system else str(error) or type(error).__name__
            raise click.ClickException(cli_message(text)) from error
        except (KeyboardInterrupt, SystemError) as error:
            # numba raises SystemError from KeyboardInterrupt if Ctrl-C arrives while it enters a kernel
            if isinstance(error, SystemError) and not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            click.echo("\nStopped.", err=True)
            raise SystemExit(EXIT_INTERRUPTED) from None


def replace_closed_streams() -> None:
    """Give standard output and standard error that the caller closed (>&-) a place to write to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


class SectionedCommand(click.Command):
    """A command whose help lists its options under the headings of `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        records = {one.name: record for one in options if (record := one.get_help_record(ctx))}
        for title, names in SECTIONS.items():
            if own := [records.pop(name) for name in names if name in records]:
                with formatter.section(title):
                    formatter.write_dl(own)
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))


class Tolerance(click.ParamType):
    """A number, or the word "statistical"."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value == "statistical":
            return "statistical"
        try:
            return float(value)
        except ValueError:
            self.fail(f'{value!r} is neither a number nor "statistical".', param, ctx)


def read_columns(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse pairs OURS=THEIRS; vectors take several columns (obs=x,v), and an empty THEIRS means no such column."""
    columns: dict[str, Any] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours:
            raise click.BadParameter(f"{pair!r} does not have the form OURS=THEIRS, as in reward=r.", ctx, param)
        if ours in columns:
            raise click.BadParameter(f"{ours!r} is given twice.", ctx, param)
        several = ours in ("obs", "next_obs", "action", "categorical") and "," in theirs
        columns[ours] = theirs.split(",") if several else theirs or None
    return columns


def one_or_several(ctx: click.Context, param: click.Parameter, paths: tuple[str, ...]) -> str | list[str] | None:
    """The path, a list of several paths, or None."""
    return list(paths) if len(paths) > 1 else paths[0] if paths else None


def complete_features(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in FEATURE_NAMES if name.startswith(incomplete)]


def complete_solvers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in solver_names() if name.startswith(incomplete)]


def solver_names() -> list[str]:
    """Names of all solvers, read from the source files: importing them would make completion slow."""
    files = (Path(__file__).parents[1] / "solvers").glob("[a-z]*.py")
    return sorted(name for file in files for name in re.findall(r'name: ClassVar\[str\] = "(.*)"', file.read_text()))


def setting_option(name: str, metavar: str, text: str, *, kind: Any = str, complete: Any = None) -> Any:
    """An option of `Settings` that is None if absent, so that `config.merge` can apply the file and the default."""
    value = default_of(name)
    if value is not None:
        text += f" [default: {value if isinstance(value, str) else format(value, 'g')}]"
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, name, type=kind, default=None, metavar=metavar, help=text, shell_complete=complete)


def number_option(
    name: str, text: str, *, default: float | None = None, shown: str = "", required: bool = False
) -> Any:
    """An option that is a number. shown: its default in the help text."""
    return click.option(
        f"--{name}", type=float, default=default, show_default=shown or None, required=required, metavar="NUMBER",
        help=text,
    )  # fmt: skip


def seed_option(text: str) -> Any:
    """The option --seed of a command without a file of settings."""
    return click.option("--seed", default=0, type=click.IntRange(0, MAX_SEED), show_default=True, help=text)


def options(*decorators: Any) -> Any:
    """Several options as one decorator, listed in this order."""
    return lambda command: reduce(lambda found, decorator: decorator(found), reversed(decorators), command)


columns_option = click.option(
    "--columns", multiple=True, metavar="OURS=THEIRS", callback=read_columns,
    help="Read the column that valuefit calls OURS from your column THEIRS: reward=r, or obs=x,v. Repeat it for more "
    "columns. An empty THEIRS (done=) ignores the column.",
)  # fmt: skip
missing_option = setting_option(
    "missing", "HOW", "Gaps in the observations. flag: fill them (numbers with the median, text with a category of "
    "its own) and add entries that say where they were.", kind=click.Choice(CHOICES["missing"]),
)  # fmt: skip
LIMIT_HELP = "Bytes that the log, or a part of it, may take in memory, as in 500MB or 2GiB."
force_option = click.option("--force", is_flag=True, default=None, help="Overwrite existing files.")
