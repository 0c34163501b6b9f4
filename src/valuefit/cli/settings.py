"""The options of `evaluate` and `compare`, each defined once: a field that is also an option of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from valuefit.features import built_in

MAX_SEED = 2**63 - 1
PATH = click.Path(readable=False)  # not tested by click, which finds a folder unreadable while it is being replaced


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


class ColumnName(click.ParamType):
    """OURS=THEIRS as a pair; vectors take several columns (obs=x,v), and an empty THEIRS means no such column."""

    name = "pair"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):  # of a file, which has lists
            ours, theirs = value
            names = theirs if isinstance(theirs, list) else [theirs]
            if not names or not all(isinstance(name, str) for name in names):
                self.fail('columns = { reward = "r", obs = ["x", "v"] } has the right form.', param, ctx)
            return ours, theirs or None
        ours, equals, theirs = value.partition("=")
        if not equals or not ours:
            self.fail(f"{value!r} does not have the form OURS=THEIRS, as in reward=r.", param, ctx)
        several = ours in ("obs", "next_obs", "action", "categorical") and "," in theirs
        return ours, theirs.split(",") if several else theirs or None


def as_columns(context: click.Context, parameter: click.Parameter, pairs: tuple[tuple[str, Any], ...]) -> Any:
    """The pairs as a dict, after those of a file of options."""
    names = [ours for ours, _ in pairs]
    if twice := [ours for ours in names if names.count(ours) > 1]:
        raise click.BadParameter(f"{twice[0]!r} is given twice.", context, parameter)
    return {**dict((context.default_map or {}).get("columns", ())), **dict(pairs)}


def completed_by(names: Callable[[], list[str]]) -> Callable[..., list[CompletionItem]]:
    """A function for tab completion that offers these names."""
    return lambda context, parameter, word: [CompletionItem(name) for name in names() if name.startswith(word)]


def feature_names() -> list[str]:
    return ["auto", *built_in()]


def solver_names() -> list[str]:
    """Names of all solvers, read from the source files: importing them would make completion slow."""
    files = (Path(__file__).parents[1] / "solvers").glob("[a-z]*.py")
    return sorted(name for file in files for name in re.findall(r'name: ClassVar\[str\] = "(.*)"', file.read_text()))


def setting(
    default: Any, metavar: str | None, text: str, *flags: str, section: str = "", path: bool = False,
    output: bool = False, **about: Any,
) -> Any:  # fmt: skip
    """A field of `Settings` with its default and its option.

    flags: those of the option, if not --name. section: the heading of the help that begins with it. path: whether it is
    a path, which in a file of options is relative to the folder of the file. output: whether it is not written to such
    a file, because it does not affect the result. about: other arguments of `click.Option`.
    """
    if default is not None and default is not False and default != ():
        text += f" [default: {default if isinstance(default, str) else format(default, 'g')}]"
    about |= {"metavar": metavar, "help": text, "default": default}
    if default == ():
        about |= {"multiple": True, "default": None}
    metadata = {"flags": flags, "section": section, "path": path, "output": output, "option": about}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The options of `evaluate` and `compare` in the order of their help."""

    log: tuple[str, ...] = setting((), None, "", path=True)
    columns: dict[str, Any] = setting(  # noqa: RUF009  # a field
        (), "OURS=THEIRS", "Read the column that valuefit calls OURS from your column THEIRS: reward=r, or obs=x,v. "
        "Repeat it for more columns. An empty THEIRS (done=) ignores the column.", section="The log and the policy",
        type=ColumnName(), callback=as_columns,
    )  # fmt: skip
    missing: Literal["refuse", "flag"] = setting(
        "refuse", "HOW", "Gaps in the observations. flag: fill them (numbers with the median, text with a category of "
        "its own) and add entries that say where they were.", type=click.Choice(("refuse", "flag")),
    )  # fmt: skip
    policy: tuple[str, ...] = setting(
        (), "POLICY", "The policy to evaluate, if not the one that produced the log: module:function, a Python "
        "function that returns the probabilities of the actions for given observations; or a .npy or .csv file of "
        "probabilities (states x actions, or one per step).", path=True,
    )  # fmt: skip
    starts: str | None = setting(
        None, "FILE", "File of observations (.npy, .csv) to average the value over. [default: the first observation "
        "of each episode]", path=True, type=PATH,
    )  # fmt: skip
    memory: str = setting(
        "auto", "HOW", "stream: read the log in parts (Parquet, HDF5, Minari, a saved folder), which auto does if it "
        "would not fit into memory.", type=click.Choice(("auto", "stream")),
    )  # fmt: skip
    limit: str | None = setting(
        None, "SIZE", "Bytes that the log, or a part of it, may take in memory, as in 500MB or 2GiB.", type=str
    )
    scheduler: str | None = setting(
        None, "ADDRESS", "Address of a Dask scheduler whose workers read and evaluate the parts.", type=str
    )
    checkpoint: str | None = setting(
        None, "FOLDER", "Keep the sums over a log that is read in parts here: the same command goes on where it was "
        "stopped. compare keeps those of each policy, in FOLDER-1, FOLDER-2, ...", path=True, type=str,
    )  # fmt: skip

    features: str = setting(
        "auto", "NAME", "Features of an observation; the value is a weighted sum of them: "
        f"{', '.join(feature_names()[:-1])} or {feature_names()[-1]}. Options follow a colon: fourier:order=5.",
        section="The value function", shell_complete=completed_by(feature_names),
    )  # fmt: skip
    discount: float = setting(0.99, "NUMBER", "Discount factor per step, 0 to 1.", type=float)
    values: str = setting(
        "state", "KIND", "Fit values of a state, or of a state-action pair. state-action needs --policy and discrete "
        "actions, but no behaviour_prob.", type=click.Choice(("state", "state-action")),
    )  # fmt: skip
    trace: float = setting(0.0, "NUMBER", "Decay of the eligibility trace (lambda), 0 to 1.", type=float)
    ridge: float = setting(
        0.0, "NUMBER", "l2 penalty on the weights, as in the paper. It shrinks values towards 0, and a check measures "
        "by how much.", type=float,
    )  # fmt: skip

    interval: Literal["cr3", "cr1"] = setting(
        "cr3", "KIND", "Standard errors by the jackknife over episodes (cr3), or by the sandwich estimate (cr1), which "
        "is cheaper and too small with few or unequal episodes.", section="The interval",
        type=click.Choice(("cr3", "cr1")),
    )  # fmt: skip
    level: float = setting(0.95, "NUMBER", "Level of the interval, between 0 and 1.", type=float)
    reward_range: tuple[float, float] | None = setting(
        None, "LOW HIGH", "The smallest and the largest reward that is possible. The interval is cut at what such "
        "rewards can add up to.", type=(float, float),
    )  # fmt: skip
    cluster: str | None = setting(
        None, "COLUMN", "The column that says which episodes belong together, such as those of a patient or user. "
        "Standard errors are then clustered by it.", type=str,
    )  # fmt: skip

    solver: str = setting(
        "auto", "NAME", "Solver; valuefit solvers lists them. auto chooses one.", section="The solver",
        shell_complete=completed_by(solver_names),
    )  # fmt: skip
    tol: float | Literal["statistical"] = setting(
        "statistical", "NUMBER", "Stop when the relative gap to the minimum of the objective is below this. "
        "statistical: stop when the solver error is far below the standard error.", type=Tolerance(),
    )  # fmt: skip
    max_passes: float = setting(500.0, "NUMBER", "Maximum number of passes; a pass reads every step once.", type=float)
    seed: int = setting(0, "NUMBER", "Random seed of the solver.", type=click.IntRange(max=MAX_SEED))
    device: str | None = setting(
        None, "NAME", "Solve on this device: cuda for a GPU, with torch installed (extra gpu).", type=str
    )

    checks: str = setting(
        "standard", "WHICH", "all: also solve with other traces, and compare the values.", section="The checks",
        type=click.Choice(("standard", "all")),
    )  # fmt: skip
    strict: bool = setting(
        False, None, 'Exit with code 4 if the verdict (in compare, one of them) is "do not use".',
        "--strict/--no-strict", output=True,
    )  # fmt: skip

    report: str | None = setting(
        None, "PATH.html", "Write an HTML report with figures.", section="The output", path=True, output=True, type=PATH
    )
    save: str | None = setting(
        None, "PATH.npz", "Save the evaluation, for Evaluation.load in Python.", path=True, output=True, type=PATH
    )
    json: bool = setting(False, None, "Print one JSON object and nothing else.", "--json/--no-json", output=True)
    quiet: bool = setting(
        False, None, "Print one line: the value, its interval and the verdict.", "--quiet/--no-quiet", "-q", output=True
    )
    force: bool = setting(False, None, "Overwrite existing files.", "--force", output=True, is_flag=True)


def setting_options(*names: str, **texts: str) -> Callable[[Any], Any]:
    """The decorator that adds the options of these fields, or of all; texts: help of options that have another."""

    def decorate(command: Any) -> Any:
        for one in reversed(fields(Settings)):
            about = {**one.metadata["option"], "help": texts.get(one.name, one.metadata["option"]["help"])}
            flags = one.metadata["flags"] or (f"--{one.name.replace('_', '-')}",)
            if not names or one.name in names:
                log = one.name == "log"
                command = (
                    click.argument("log", nargs=-1, type=PATH)(command)
                    if log
                    else (click.option(one.name, *flags, **about)(command))
                )
        return command

    return decorate
