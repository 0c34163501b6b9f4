"""`valuefit demo`: compare all solvers on the paper's Random MDP."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from valuefit.datasets.mdp import random_mdp
from valuefit.engine.loop import Progress as SolverProgress
from valuefit.engine.loop import solve
from valuefit.engine.result import Result
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.solvers import names


def demo_problem(size: dict[str, int], seed: int) -> Problem:
    """The Random MDP of this size with the paper's discount."""
    mdp = random_mdp(size["states"], features=size["features"], seed=seed)
    return Problem(mdp.log(size["steps"], seed=seed), mdp.rows, discount=0.95)


def compare_solvers(*, quick: bool, tol: float, max_passes: float, seed: int) -> list[tuple[Result, float]]:
    """Run every solver with its defaults; print passes, seconds, exact gap and status; returns (result, gap) pairs."""
    small_size = {"states": 50, "features": 20, "steps": 2_000}
    size = small_size if quick else {"states": 400, "features": 200, "steps": 20_000}
    console = Console()
    problem, small = demo_problem(size, seed), demo_problem(small_size, seed)
    console.print(
        f"Random MDP: {size['states']} states, {problem.n:,} logged steps, {problem.d} features, discount 0.95. "
        f"Each solver runs with its defaults until a gap of {tol:.3g} is certified, at most {max_passes:g} passes."
    )
    exact = Exact(problem)
    results: list[tuple[Result, float]] = []
    columns = TextColumn("{task.description:>15}"), BarColumn(), TextColumn("{task.completed:.0f} passes")
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("", total=max_passes)

        def show(progress: SolverProgress) -> None:
            bars.update(bar, completed=min(progress.passes, max_passes))

        for name in names():
            bars.reset(bar, description=name, total=max_passes)
            solve(small, name, tol=0, max_passes=1)  # compile first, so that seconds exclude compilation
            result = solve(problem, name, tol=tol, max_passes=max_passes, seed=seed, callback=show)
            results.append((result, exact.gap(result.theta)))
    table = Table()
    table.add_column("solver", style="bold")
    for column in ("passes", "seconds", "gap"):
        table.add_column(column, justify="right")
    table.add_column("status")
    for name, (result, gap) in zip(names(), results, strict=True):
        shown = name if result.solver == name else f"{name} ({result.solver})"
        table.add_row(shown, f"{result.passes:.1f}", f"{result.seconds:.3f}", f"{gap:.1e}", result.status)
    console.print(table)
    console.print(
        "gap: (F(theta) - F*) / (F(0) - F*), where F is the objective and F* its minimum; 0 is exact. "
        "pass: every logged step read once, set-up and stopping tests included."
    )
    return results
