"""The command line. Nothing heavy is imported here: `valuefit --help` must answer at once."""

from __future__ import annotations

from typing import Any

import click

from valuefit import __version__
from valuefit.cli.config import CHOICES, merge
from valuefit.cli.options import (
    FEATURES,
    SHELLS,
    Commands,
    Sectioned,
    Tolerance,
    columns_option,
    complete_features,
    complete_solvers,
    force_option,
    option,
)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="valuefit")
def main() -> None:
    """How good is this policy, from logged data alone?

    valuefit fits a linear value function to a fixed log of steps and says what the policy is worth, how sure that is,
    and when not to trust it.

    \b
    Examples:
      valuefit evaluate                  the example log that comes along
      valuefit evaluate log.csv          your own log
      valuefit evaluate log.parquet --discount 0.95 --report report.html
      valuefit convert log.csv log.parquet
      valuefit solvers                   what each solver can do
      valuefit demo                      all solvers on the paper's Random MDP
      valuefit reproduce random-mdp --quick

    For completion with the tab key, put this into your shell's start-up file (or zsh, fish):

    \b
      eval "$(valuefit completion bash)"
    """


@main.command(cls=Sectioned, short_help="How good is the policy? Its value, with an interval.")
@click.argument("log", required=False, type=click.Path())
@columns_option
@option("policy", "POLICY", "Evaluate this policy, not the one that acted: module:function, or a .npy or .csv file of "
        "probabilities (states x actions, or one a step).")  # fmt: skip
@option("starts", "FILE", "Observations (.npy, .csv) to average the value over. [default: the first of each episode]",
        kind=click.Path())  # fmt: skip
@option("features", "NAME", f"{', '.join(FEATURES[:-1])} or {FEATURES[-1]}, with options as in fourier:order=5.",
        complete=complete_features)  # fmt: skip
@option("discount", "NUMBER", "What a reward one step later is worth, 0 to 1.", kind=float)
@option("values", "KIND", "state, or state-action, which needs a policy and discrete actions but no behaviour_prob.",
        kind=click.Choice(CHOICES["values"]))  # fmt: skip
@option("trace", "NUMBER", "Eligibility-trace decay (lambda), 0 to 1.", kind=float)
@option("ridge", "NUMBER", "l2 penalty on the weights.", kind=float)
@option("solver", "NAME", "How to solve; valuefit solvers lists them.", complete=complete_solvers)
@option("tol", "NUMBER", "Gap to the best weights at which to stop, or statistical: well below the chance in the log.",
        kind=Tolerance())  # fmt: skip
@option("max_passes", "NUMBER", "Passes over the log allowed.", kind=float)
@option("seed", "NUMBER", "Draws the solver's samples.", kind=int)
@option("report", "PATH.html", "Write a page with figures.", kind=click.Path())
@option("save", "PATH.npz", "Write the evaluation, for Evaluation.load in Python.", kind=click.Path())
@click.option("--json/--no-json", "json", default=None, help="Print one JSON object and nothing else.")
@click.option("--quiet/--no-quiet", "-q", default=None, help="Print one line: the value and its interval.")
@force_option
@click.option("--config", type=click.Path(), metavar="FILE.toml",
              help="Take options from here; those on the command line win.")  # fmt: skip
@click.option("--write-config", type=click.Path(), metavar="FILE.toml",
              help="Write the options of this run, for --config.")  # fmt: skip
def evaluate(config: str | None, write_config: str | None, **options: Any) -> None:
    """How good is the policy? Its mean value over the starts, with a 95% interval.

    LOG has one row a step. It is a .csv, .tsv, .parquet, .npz or .h5 file (as D4RL lays it out), a folder that
    valuefit or Minari wrote, or minari:ID. Without LOG, the example that comes with valuefit is taken: Mountain Car.

    \b
    Columns looked for (--columns names yours):
      obs_0, obs_1, ...        what was observed before the step    needed
      reward                   what the step earned                 needed
      terminated               1 where the episode came to its end
      truncated                1 where it was only cut off
      episode                  a number for each episode
      action, behaviour_prob   what was done, and how probable it was
      next_obs_0, ...          what was observed after the step

    \b
    Examples:
      valuefit evaluate
      valuefit evaluate log.csv --discount 0.95 --report report.html
      valuefit evaluate log.csv --columns reward=r --columns obs=x,v
      valuefit evaluate log.parquet --policy mypolicy:probabilities
      valuefit evaluate log.parquet --policy table.npy --values state-action
      valuefit evaluate minari:D4RL/door/human-v2 --features rbf --json
      valuefit evaluate log.csv --ridge 0.01 --write-config run.toml
      valuefit evaluate --config run.toml

    Every option can stand in a TOML file, as in discount = 0.95; paths in it start at its own folder. A policy
    that is code, and force, must be repeated on the command line.

    Exit codes: 0 done, 1 wrong input, 2 wrong usage, 3 did not converge (the answer is printed all the same),
    130 stopped by Ctrl-C.
    """
    settings = merge(options, config)  # before anything heavy is imported
    from valuefit.cli.commands import evaluate_log

    raise SystemExit(evaluate_log(settings, write_config))


@main.command()
@click.argument("source", metavar="IN", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@columns_option
@force_option
def convert(source: str, target: str, columns: dict[str, Any], force: bool | None) -> None:
    """Write the log IN, in any format that evaluate reads, as OUT.

    OUT is a .parquet or .npz file by its ending; without ending it is a folder, which loads fastest and may be
    larger than memory. What had to be assumed or left out is printed.

    \b
    Examples:
      valuefit convert log.csv log.parquet
      valuefit convert hopper.hdf5 hopper
      valuefit convert log.csv log.npz --columns reward=r --columns obs=x,v
    """
    from valuefit.cli.commands import convert_log

    convert_log(source, target, columns=columns, force=bool(force))


@main.command()
@click.option("--markdown", is_flag=True, help="As a Markdown table.")
def solvers(markdown: bool) -> None:
    """List the solvers and which problems each can take.

    \b
    Examples:
      valuefit solvers
      valuefit solvers --markdown
    """
    from valuefit.cli.capabilities import markdown_table, print_table

    if markdown:
        click.echo(markdown_table())
    else:
        print_table()


@main.command(short_help="Compare every solver on the paper's Random MDP.")
@click.option("--quick", is_flag=True, help="A small MDP: 50 states, 20 features, 2,000 steps.")
@click.option("--tol", default=1e-6, show_default=True, help="Gap at which a solver may stop.")
@click.option("--max-passes", default=100.0, show_default=True, help="Passes over the log allowed to each solver.")
@click.option("--seed", default=0, show_default=True, help="Draws the MDP, the log and the solvers' samples.")
def demo(quick: bool, tol: float, max_passes: float, seed: int) -> None:
    """Compare every solver on the Random MDP of Du et al. (2017).

    \b
    Examples:
      valuefit demo --quick
      valuefit demo --tol 1e-3
    """
    from valuefit.cli.demo import compare_solvers

    compare_solvers(quick=quick, tol=tol, max_passes=max_passes, seed=seed)


@main.command()
@click.argument("name")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the results. [default: results/NAME]")
@click.option("--quick", is_flag=True, help="A small version, within a minute.")
@click.option("--jobs", default=2, show_default=True, help="Runs at a time.")
@click.option("--seed", default=0, show_default=True, help="Tuning uses this seed, the runs shown the next ones.")
def reproduce(name: str, out: str | None, quick: bool, jobs: int, seed: int) -> None:
    """Run an experiment of the paper: tune, run, draw, tabulate.

    NAME is random-mdp, mountain-car-5000, mountain-car-20000, off-policy, traces, table-1, or a path to a TOML
    file. A run that was stopped goes on where it was when it is started again with the same folder.

    \b
    Examples:
      valuefit reproduce random-mdp --quick
      valuefit reproduce mountain-car-5000 --out figures/
    """
    from valuefit.paper.reproduce import reproduce_experiment

    try:
        reproduce_experiment(name, out=out, quick=quick, jobs=jobs, seed=seed)
    except KeyboardInterrupt:
        click.echo("Run the same command again to go on from here.", err=True)
        raise


@main.command(short_help="Print the script for completion with the tab key.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes valuefit's words with the tab key.

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
