"""How commands and options behave on the command line: headings, names to complete, failures as sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from valuefit.cli.config import default_of

FEATURES = ("auto", "tiles", "fourier", "rbf", "polynomial", "one-hot", "identity")
SHELLS = ("bash", "zsh", "fish")
VECTORS = ("obs", "next_obs", "action")
SECTIONS = {
    "The log and the policy": ("columns", "policy", "starts"),
    "The value function": ("features", "discount", "values", "trace", "ridge"),
    "The solver": ("solver", "tol", "max_passes", "seed"),
    "What is shown and written": ("report", "save", "json", "quiet", "force"),
    "Repeating a run": ("config", "write_config"),
}


class Commands(click.Group):
    """Commands whose failures are sentences: exit code 1 for wrong input, 130 for Ctrl-C, never a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they are defined, the one that people need first."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click knows what to do when the reader has gone
            raise
        except (ValueError, OSError, ImportError, MemoryError) as error:
            from valuefit.cli.console import sentence

            raise click.ClickException(sentence(str(error) or type(error).__name__)) from error
        except (KeyboardInterrupt, SystemError) as error:
            # while numba enters a kernel, Ctrl-C surfaces as a SystemError that it caused
            if isinstance(error, SystemError) and not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            click.echo("\nStopped.", err=True)
            raise SystemExit(130) from None


class Sectioned(click.Command):
    """A command whose options are listed under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        records = {one.name: record for one in options if (record := one.get_help_record(ctx))}
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
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
    """ours=theirs, as often as needed; vectors take several columns, and nothing after the = leaves a column out."""
    columns: dict[str, Any] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours:
            raise click.BadParameter(f"{pair!r} is not of the form ours=theirs, as in reward=r.", ctx, param)
        if ours in columns:
            raise click.BadParameter(f"{ours!r} is named twice.", ctx, param)
        columns[ours] = theirs.split(",") if ours in VECTORS and "," in theirs else theirs or None
    return columns


def complete_features(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in FEATURES if name.startswith(incomplete)]


def complete_solvers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in solver_names() if name.startswith(incomplete)]


def solver_names() -> list[str]:
    """The names that the files in `solvers/` declare: importing them would make completion slow."""
    files = (Path(__file__).parents[1] / "solvers").glob("[a-z]*.py")
    return sorted(name for file in files for name in re.findall(r'name: ClassVar\[str\] = "(.*)"', file.read_text()))


def option(name: str, metavar: str, text: str, *, kind: Any = str, complete: Any = None) -> Any:
    """An option that is None unless the command line gives it; its default stands in the settings."""
    value = default_of(name)
    if value is not None:
        text += f" [default: {value if isinstance(value, str) else format(value, 'g')}]"
    words = f"--{name.replace('_', '-')}"
    return click.option(words, name, type=kind, default=None, metavar=metavar, help=text, shell_complete=complete)


columns_option = click.option(
    "--columns", multiple=True, metavar="OURS=THEIRS", callback=read_columns,
    help="Name a column of yours, as in reward=r or obs=x,v; again for more. done= leaves a column out.",
)  # fmt: skip
force_option = click.option("--force", is_flag=True, default=None, help="Overwrite files that are there already.")
