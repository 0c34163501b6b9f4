"""The command line. Nothing heavy is imported here: `valuefit --help` must answer at once."""

from __future__ import annotations

import click

from valuefit import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="valuefit")
def main() -> None:
    """How good is this policy, from logged data alone?

    valuefit fits a linear value function to a fixed log of transitions.

    \b
    Examples:
      valuefit demo            compare all solvers on the paper's Random MDP
      valuefit demo --quick    the same on a small one
      valuefit solvers         list the solvers and what they can do
      valuefit reproduce random-mdp --quick
    """


@main.command()
@click.option("--quick", is_flag=True, help="A small MDP: 50 states, 20 features, 2,000 steps.")
@click.option("--tol", default=1e-6, show_default=True, help="Gap at which a solver may stop.")
@click.option("--max-passes", default=100.0, show_default=True, help="Passes over the log allowed to each solver.")
@click.option("--seed", default=0, show_default=True, help="Draws the MDP, the log and the solvers' samples.")
def demo(quick: bool, tol: float, max_passes: float, seed: int) -> None:
    """Compare every solver on the Random MDP of Du et al. (2017)."""
    from valuefit.demo import compare_solvers

    try:
        compare_solvers(quick=quick, tol=tol, max_passes=max_passes, seed=seed)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option("--markdown", is_flag=True, help="As a Markdown table.")
def solvers(markdown: bool) -> None:
    """List the solvers and which problems each can take."""
    from valuefit.capabilities import markdown_table, print_table

    if markdown:
        click.echo(markdown_table())
    else:
        print_table()


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
    from valuefit.reproduce import reproduce_experiment

    try:
        reproduce_experiment(name, out=out, quick=quick, jobs=jobs, seed=seed)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("Stopped. Run the same command again to go on from here.", err=True)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
