"""Command and option classes: options under headings, tab completion, errors as one sentence and an exit code."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import fields
from typing import Any

import click

from valuefit.cli.settings import Settings
from valuefit.messages import said

EXIT_NOT_CONVERGED, EXIT_DO_NOT_USE, EXIT_INTERRUPTED = 3, 4, 130  # 130 is the shell's code for SIGINT


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
    """A command whose help lists the options of `Settings` under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        starts = {one.name: one.metadata["section"] for one in fields(Settings)}
        starts |= {"config": "A file of options", "help": "Other"}
        sections: dict[str, list[tuple[str, str]]] = {}
        title = ""
        for one in self.get_params(ctx):
            name = "help" if one is self.get_help_option(ctx) else one.name or ""
            title = starts.get(name) or title
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)):
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
