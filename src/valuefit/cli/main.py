"""The `valuefit` command. This module imports nothing heavy, so that `valuefit --help` answers at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from valuefit import __version__
from valuefit.cli.config import read_config, settings_of
from valuefit.cli.options import Commands, SectionedCommand
from valuefit.cli.settings import MAX_SEED, PATH, setting_options

number = partial(click.option, type=float, metavar="NUMBER")
seed = partial(click.option, "--seed", default=0, type=click.IntRange(0, MAX_SEED), show_default=True)


def file_options(command: Any) -> Any:
    """The decorator that adds --config and --write-config."""
    write = click.option("--write-config", type=PATH, metavar="FILE.toml",
                         help="Write the options of this run to a file for --config.")  # fmt: skip
    read = click.option("--config", type=PATH, metavar="FILE.toml", is_eager=True, callback=read_config,
                        help="Read options from this file. The command line overrides it.")  # fmt: skip
    return read(write(command))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="valuefit")
def main() -> None:
    """How good is this policy, from logged data alone?

    valuefit estimates the value of a policy from a fixed log of steps. It fits a linear value function and reports the
    estimate, its standard error, an interval, and a verdict with its reasons: sound, caution or do not use.

    \b
    Examples:
      valuefit evaluate                  evaluate the built-in example log
      valuefit evaluate log.csv          evaluate your own log
      valuefit evaluate log.parquet --discount 0.95 --report report.html
      valuefit compare log.csv --policy new:policy --policy old:policy
      valuefit convert log.csv log.parquet
      valuefit plan --steps 1e9 --features 500 --workers 16
      valuefit solvers                   list the solvers
      valuefit demo                      compare all solvers on one problem
      valuefit reproduce random-mdp --quick

    Run valuefit COMMAND --help for the options of a command. For tab completion, add this line to the start-up file
    of your shell (bash; also zsh, fish):

    \b
      eval "$(valuefit completion bash)"
    """


@main.command(cls=SectionedCommand, short_help="Estimate the value of a policy from a log.")
@setting_options()
@file_options
@click.pass_context
def evaluate(context: click.Context, write_config: str | None, **_: Any) -> None:
    """Estimate the value of a policy from a log.

    The value is the expected discounted sum of future rewards, averaged over the first observations of the episodes
    (or over --starts). It is reported with its standard error, an interval, and a verdict: sound, caution or do not
    use, with the reasons.

    LOG has one row per step. It is a .csv, .tsv, .jsonl, .parquet or .npz file (text also as .csv.gz, .jsonl.gz), a
    .json file of RLlib, an .h5 file in the layout of D4RL, a folder written by valuefit or Minari, or minari:ID, a
    downloaded Minari dataset. Several files, a folder of files of one format, or a pattern in quotes are one log;
    files are read in the order of their names. Without LOG, the built-in example (Mountain Car) is evaluated.

    \b
    Columns of LOG (use --columns if yours have other names):
      obs_0, obs_1, ...    required   observation before the step
      reward               required   reward of the step
      terminated                      1 if the step ended the episode
      truncated                       1 if the episode was cut off (time limit)
      episode                         number or name of the episode
      action                          action taken
      behaviour_prob                  probability with which it was chosen
      cluster                         group of episodes that belong together
      next_obs_0, ...                 observation after the step

    A column of text among the observations is read as categories, if it has at most 100 distinct values or is
    declared with --columns categorical=NAME.

    \b
    Examples:
      valuefit evaluate
      valuefit evaluate log.csv --discount 0.95 --report report.html
      valuefit evaluate part-*.parquet
      valuefit evaluate log.csv --columns reward=r --columns obs=x,v
      valuefit evaluate log.parquet --policy mypolicy:probabilities
      valuefit evaluate log.parquet --policy table.npy --values state-action
      valuefit evaluate minari:D4RL/door/human-v2 --features rbf --json
      valuefit evaluate log.csv --discount 0.95 --write-config run.toml
      valuefit evaluate --config run.toml

    A TOML file for --config may set every option, as in discount = 0.95. Its relative paths are relative to the folder
    of the file. A policy that is code (module:function) and force must be repeated on the command line.

    Exit codes: 0 success, 1 wrong input, 2 wrong usage, 3 the solver did not converge (the result is still printed),
    4 the verdict is "do not use" (with --strict; the result is still printed), 130 interrupted by Ctrl-C.
    """
    settings = settings_of(context)  # before the slow imports, so that wrong options fail at once
    from valuefit.cli.commands import run_evaluate

    raise SystemExit(run_evaluate(settings, write_config))


@main.command(cls=SectionedCommand, short_help="Compare the values of policies on one log.")
@setting_options(
    policy="A policy, as in evaluate, or logged: the policy that produced the log. Repeat it for more. A single policy "
    "is compared with the logged one.",
    save="Save the evaluations, for Evaluation.load and compare in Python, numbered in the order of the policies: "
    "run.npz gives run-1.npz, run-2.npz, ...",
    quiet="Print one line for each difference: its interval, its p-value and the verdicts.",
)
@file_options
@click.pass_context
def compare(context: click.Context, write_config: str | None, **_: Any) -> None:
    """Compare the values of policies on one log.

    Every pair of policies is compared: the difference of their values with its standard error, interval and p-value.
    The errors are paired by episode, because values from one log share most of its sampling error, so a difference is
    known more precisely than the values suggest. The intervals and p-values of the differences hold for all pairs at
    once.

    LOG is a log in any format that evaluate reads, or several files. LOG and the policies may also come from the file
    of --config, as in policy = ["a.npy", "b.npy"].

    \b
    Examples:
      valuefit compare log.csv --policy new:policy
      valuefit compare log.csv --policy new:policy --policy old:policy
      valuefit compare log.parquet --policy a.npy --policy logged
      valuefit compare log.csv --policy new:policy --report report.html
      valuefit compare log.csv --policy table.npy --values state-action --json
      valuefit compare log.csv --policy a.npy --policy b.npy --strict --quiet
      valuefit compare --config run.toml

    Exit codes: as for evaluate; 3 if one of the solvers did not converge.
    """
    settings = settings_of(context)
    for missing, name in ((not settings.log, "argument 'LOG'"), (not settings.policy, "option '--policy'")):
        if missing:
            raise click.UsageError(f"Missing {name}: give it here, or in the file of --config.")
    from valuefit.cli.compare import run_compare

    raise SystemExit(run_compare(settings, write_config))


@main.command()
@click.argument("source", metavar="IN", nargs=-1, required=True, type=PATH)
@click.argument("target", metavar="OUT", type=PATH)
@setting_options("columns", "missing", "limit", "force")
def convert(**settings: Any) -> None:
    """Convert a log to Parquet, .npz or a folder.

    IN is a log in any format that evaluate reads, or several files. OUT is a file that ends in .parquet or .npz, or,
    without an ending, a folder: it loads fastest and may be larger than memory. Notes on assumptions and dropped steps
    are printed.

    \b
    Examples:
      valuefit convert log.csv log.parquet
      valuefit convert hopper.hdf5 hopper
      valuefit convert part-*.parquet log
      valuefit convert log.csv log.npz --columns reward=r --columns obs=x,v
    """
    from valuefit.cli.commands import run_convert

    run_convert(**settings)


@main.command(short_help="Predict time and memory for a log in parts.")
@number("--steps", required=True, help="Steps of the log, as in 1e10.")
@number("--features", required=True, help="Number of features.")
@number("--workers", default=1, show_default="1, without Dask", help="Workers of a Dask cluster.")
@number("--threads", default=1, show_default="1", help="Threads of a worker.")
@click.option("--solver", default="auto", show_default=True, metavar="NAME", help="auto, lstd, krylov or pdbg.")
@number("--iterations", help="Passes that krylov or pdbg need; they depend on the problem. [default: 30, 200]")
@number("--numbers", default=8, show_default="8", help="Numbers in an observation, in float32.")
@click.option("--limit", default="2GiB", show_default=True, metavar="SIZE",
              help="Memory that a thread may hold, as limit of vf.load.")  # fmt: skip
@number("--price", help="Price of a worker for an hour; prints the cost.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def plan(as_json: bool, **sizes: Any) -> None:
    """Predict time and memory of an evaluation that reads its log in parts.

    The numbers are those of a model, not of a measurement: its coefficients were fitted on one machine with two cores,
    with files in memory and Fourier features. On other processors, disks and networks expect a factor of two or so.

    \b
    Examples:
      valuefit plan --steps 1e8 --features 100
      valuefit plan --steps 1e10 --features 2000 --workers 64 --price 2
      valuefit plan --steps 1e9 --features 20000 --iterations 50 --json
    """
    from valuefit.cli.plan import run_plan

    run_plan(as_json=as_json, **sizes)


@main.command()
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def solvers(markdown: bool) -> None:
    """List the solvers and which problems each supports.

    \b
    Examples:
      valuefit solvers
      valuefit solvers --markdown
    """
    from valuefit.cli import capabilities

    if markdown:
        click.echo(capabilities.markdown())
    else:
        capabilities.print_table()


@main.command(short_help="Compare all solvers on the paper's Random MDP.")
@click.option("--quick", is_flag=True, help="Use a small MDP: 50 states, 20 features, 2,000 steps.")
@click.option("--tol", default=1e-6, show_default=True, help="Relative gap at which a solver stops.")
@click.option("--max-passes", default=100.0, show_default=True, help="Maximum number of passes per solver.")
@seed(help="Random seed of the MDP, the log and the solvers.")
def demo(quick: bool, tol: float, max_passes: float, seed: int) -> None:
    """Compare all solvers on the Random MDP of Du et al. (2017): passes, seconds, gap.

    A pass reads every step of the log once. The gap is the distance of the objective from its minimum, relative to its
    distance at the start: 1 at the start, 0 at the minimum.

    \b
    Examples:
      valuefit demo --quick
      valuefit demo --tol 1e-3
    """
    from valuefit.cli.demo import compare_solvers

    compare_solvers(quick=quick, tol=tol, max_passes=max_passes, seed=seed)


@main.command(short_help="Reproduce a figure or table of the paper.")
@click.argument("name")
@click.option(
    "--out", type=click.Path(file_okay=False, readable=False), help="Folder for the results. [default: results/NAME]"
)
@click.option("--quick", is_flag=True, help="Run a small version, within a minute.")
@click.option("--jobs", default=2, type=click.IntRange(1, 1000), show_default=True,
              help="Number of parallel processes.")  # fmt: skip
@seed(help="Seed for tuning; the reported runs use the seeds after it.")
def reproduce(name: str, out: str | None, quick: bool, jobs: int, seed: int) -> None:
    """Reproduce an experiment of Du et al. (2017): tune the steps, run, write figure and tables.

    \b
    NAME is one of these, or the path of a TOML file:
      random-mdp            Figure 1
      mountain-car-5000     Figure 2
      mountain-car-20000    Figure 3
      off-policy            section 7, importance ratios
      traces                section 7, eligibility traces
      table-1               Table 1, measured

    The paper is "Stochastic Variance Reduction Methods for Policy Evaluation" (ICML 2017). An interrupted run resumes
    if you start it again with the same folder.

    \b
    Examples:
      valuefit reproduce random-mdp --quick
      valuefit reproduce mountain-car-5000 --out figures/
    """
    from valuefit.paper.reproduce import reproduce_experiment

    try:
        reproduce_experiment(name, out=out, quick=quick, jobs=jobs, seed=seed)
    except KeyboardInterrupt:
        click.echo("Run the same command again to resume.", err=True)
        raise


@main.command(short_help="Print the script for tab completion.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the script for tab completion in your shell.

    \b
    Examples (in ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish):
      eval "$(valuefit completion bash)"
      eval "$(valuefit completion zsh)"
      valuefit completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "valuefit", "_VALUEFIT_COMPLETE").source())


if __name__ == "__main__":
    main()
