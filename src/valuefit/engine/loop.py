"""The one loop around every solver, with its budget, stopping rule, history and guard against divergence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from valuefit.data.validation import array_of, number, whole_number
from valuefit.engine.budget import Budget
from valuefit.engine.choice import rank
from valuefit.engine.divergence import DivergenceGuard
from valuefit.engine.history import History, Progress, StoppedByCallback
from valuefit.engine.result import Result, Status
from valuefit.engine.stopping import FINEST_GAP, ConvergenceTest, Gap, Statistical, StoppingRule
from valuefit.messages import shown
from valuefit.problem.exact import Exact
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers import find, refuse
from valuefit.solvers.auto import Auto
from valuefit.solvers.solver import ROUNDING_GAP, Solver, State, settings
from valuefit.threads import blas_threads
from valuefit.typing import Array


def solve(
    problem: SaddlePoint,
    solver: str | Solver,
    *,
    tol: float | Literal["statistical"] = 1e-8,
    max_passes: float = 500,
    max_seconds: float | None = None,
    seed: int = 0,
    init: Result | tuple[Any, Any] | Any = None,
    reference: Result | Any = None,
    callback: Callable[[Progress], Any] | None = None,
    reported: Callable[[Array], tuple[float, float]] | None = None,
    moments_needed: bool = False,
) -> Result:
    """Minimise F with one of the solvers until the gap is certified below `tol`, or the budget is spent.

    gap = (F(theta) - F*) / (F(0) - F*), with the starting point in place of 0 where theta = 0 is optimal.
    A pass touches every transition once; everything counts: preconditioners, snapshots, moments, choosing steps and
    the certificate. Ctrl-C returns the best iterate so far. Same seed, machine, versions and threads: same bits.

    solver: a short name (`valuefit.solvers.names()`) or a solver with settings. tol: the gap promised by
    "converged"; 0 runs until the budget is spent, and below 1e-28, where gaps are rounding errors, none is
    certified; "statistical" is 1e-6, or a larger gap where `reported` says that it is enough. init: an earlier
    `Result`, a `(theta, w)` pair or a theta to start from, of the same or fewer features (new ones start at 0).
    reference: the exact solution (an array or a `Result`); the history then holds the true gap of every epoch, free of
    charge. callback: called with a `Progress` after each epoch; return True to stop. reported: for tol="statistical",
    theta -> (largest error of a reported number over its allowance, passes of this check); the solve stops when it is
    at most 1. moments_needed: whether A will be formed after the solve in any case, which `auto` takes into account.
    """
    if not isinstance(problem, SaddlePoint):
        raise ValueError(
            f"solve takes a Problem, not {type(problem).__name__}: make one with valuefit.Problem(log, ...)."
        )
    seed = whole_number("seed", seed, low=0)
    solver = find(solver)
    if not (isinstance(tol, str) and tol == "statistical"):
        requirement = 'it must be a finite number, 0 or more, or "statistical"'
        tol = number("tol", tol, requirement, lambda x: 0 <= x < math.inf)
    max_passes = number("max_passes", max_passes, "it must be more than 0 (math.inf: no limit)", lambda x: x > 0)
    if max_seconds is not None:
        requirement = "it must be 0 or more, or None for no limit"
        max_seconds = number("max_seconds", max_seconds, requirement, lambda x: x >= 0)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback is {shown(callback)}; it must be a function of a Progress.")
    refuse(solver, problem)
    start = _start(problem, init)
    history = History(problem, Budget(max_passes, max_seconds), _true_gap(problem, reference, start[0]), callback)
    solvers, why = [solver], ""
    if isinstance(solver, Auto):
        gap = FINEST_GAP if tol == "statistical" else tol
        names, why = rank(problem, gap, solver.memory, moments_needed=moments_needed)
        solvers = [find(name) for name in names]

    def rule() -> StoppingRule:
        if tol != "statistical":
            return Gap(tol)
        return Gap(FINEST_GAP) if reported is None else Statistical(problem, reported)

    result, failed = _first_success(problem, _with_fallbacks(solvers), rule, history, start, seed)
    return replace(result, message=f"{result.message} {why}{failed}".strip(), tol=tol, seed=seed)


def _first_success(
    problem: SaddlePoint, solvers: list[Solver], rule: Callable[[], StoppingRule], history: History,
    start: tuple[Array, Array], seed: int,
) -> tuple[Result, str]:  # fmt: skip
    """The result of the first solver that neither gives up nor lacks memory, and why those before it were left."""
    why = ""
    for candidate, following in zip(solvers, [*solvers[1:], None], strict=True):
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"), blas_threads(problem.k):
                result, note = _run(problem, candidate, rule(), history, *start, np.random.default_rng(seed))
        except MemoryError as error:
            if following is None:
                raise
            why += f" {candidate.name} did not fit into memory ({error})."
            continue
        if following is None or result.status not in ("diverged", "singular"):
            break
        if candidate.fallback == following.name:
            beyond = _beyond(history.budget, following, problem)
            if beyond:
                result = replace(result, status="budget", message=f"{note}. {beyond}")
                break
            why += f" {note or f'{candidate.name} gave up'}; this was solved directly, as by '{following.name}'."
        else:
            why += f" {candidate.name} ended as {result.status}, so the next was taken."
    return result, why


def _with_fallbacks(solvers: list[Solver]) -> list[Solver]:
    """Each solver followed by its fallback, none of them twice."""
    chain: dict[str, Solver] = {}
    for solver in solvers:
        chain.setdefault(solver.name, solver)
        if solver.fallback is not None:
            chain.setdefault(solver.fallback, find(solver.fallback))
    return list(chain.values())


def _beyond(budget: Budget, solver: Solver, problem: SaddlePoint) -> str:
    """Why the budget does not allow this solver too; empty where it does, or where the solver states no cost."""
    estimate = solver.cost(problem, 0.0)
    if estimate is None:
        return ""
    passes = (estimate.seconds - problem.cost.fixed_seconds) / problem.cost.pass_seconds
    limit = budget.exceeded_by(passes, estimate.seconds)
    if not limit:
        return ""
    return f"'{solver.name}' would solve it in about {passes:.0f} passes, {estimate.seconds:.2g} s: raise {limit}."


def _run(
    problem: SaddlePoint, solver: Solver, rule: StoppingRule, history: History, theta: Array, w: Array,
    rng: np.random.Generator,
) -> tuple[Result, str]:  # fmt: skip
    """Epochs of one solver until the rule is satisfied, the method is finished, or the budget is spent; its note."""
    state, budget = State(theta, w), history.budget
    guard = DivergenceGuard(problem, solver, state)
    test = ConvergenceTest(problem, theta, rule, budget, history)
    status: Status = "budget"
    message, note, epochs = "", "", 0
    try:
        after, info = solver.init(problem, theta, w)
        guard = DivergenceGuard(problem, solver, after)
        while True:
            budget.passes += info.passes
            budget.epoch_passes += info.passes if epochs else 0.0
            note = info.note or note
            gradient = history.gradient(after, info)
            if guard.accepts(after, gradient):
                state = after
                test.certificate.offer(moments=info.moments, preconditioner=info.preconditioner)
                if gradient is not None:
                    history.record(state.theta, gradient)
                if test.passed(state, info, started=epochs > 0):
                    if info.provisional and info.gap is not None:  # a certificate needs no other confirmation
                        after, info = solver.verify(problem, state)
                        if not test.confirmed(after, info):
                            continue
                        state, budget.passes = after, budget.passes + info.passes
                    status, message = "converged", _converged(rule, test)
                    break
                if info.finished and info.loose:
                    after, info = solver.verify(problem, state)
                    continue
                if info.finished:
                    status, message = _finished(solver, rule, test)
                    break
            else:
                retry = guard.retry(state.steps)
                if retry is None:
                    status, message, state = "diverged", guard.message(state.steps), guard.best
                    break
                state = retry
            limit = budget.exhausted(info.passes if epochs else -math.inf)  # one epoch is always run
            if limit is not None:
                message = f"Stopped after {limit[0]}. {test.standing(state)} Allow more with `{limit[1]}`."
                break
            after, info = solver.epoch(problem, state, rng)
            epochs += 1
    except (KeyboardInterrupt, SystemError, StoppedByCallback) as error:
        if not (isinstance(error, StoppedByCallback) or _by_keyboard(error)):
            raise
        source = "callback" if isinstance(error, StoppedByCallback) else "keyboard"
        status, message = "interrupted", f"Stopped by the {source}; this is the best iterate so far."
        state = guard.better(state)
    return _result(solver, state, status, [message, note], guard, test), note


def _converged(rule: StoppingRule, test: ConvergenceTest) -> str:
    message = f"The gap is certified to be at most {test.gap:.1e}; {rule} was asked."
    if isinstance(rule, Statistical) and rule.confirmed and rule.check is not None:
        message += " What is reported is within a tenth of its standard error of where it would end."
    return message


def _finished(solver: Solver, rule: StoppingRule, test: ConvergenceTest) -> tuple[Status, str]:
    """Status and message of a method that has nothing left to do, at a gap above the required one."""
    if test.gap is not None and test.gap <= ROUNDING_GAP:
        text = f"Exact but for rounding, which leaves a gap of at most {test.gap:.1e}, above tol = {rule.gap:.3g}."
        return "budget", text
    return "singular", (
        f"The moments are too nearly singular for {solver.name} to reach tol = {rule.gap:.3g}. "
        "Use fewer features, or drop those that depend on others."
    )


def _result(
    solver: Solver, state: State, status: Status, notes: list[str], guard: DivergenceGuard, test: ConvergenceTest
) -> Result:
    problem, budget, history = test.problem, test.budget, test.history
    gap, objective = test.known(state)
    if len(problem.dead):
        listed = ", ".join(map(str, problem.dead[:5])) + (", ..." if len(problem.dead) > 5 else "")
        notes.append(f"Without data, hence with weight 0: {len(problem.dead)} features ({listed}).")
    if guard.retries:
        notes.append(f"The automatic steps were shortened {guard.retries} times.")
    return Result(
        theta=state.theta,
        w=state.w,
        status=status,
        message=" ".join(note for note in notes if note),
        passes=budget.passes,
        seconds=budget.seconds,
        history=history.table(),
        objective=objective,
        gap=gap,
        residual=history.residual,
        solver=solver.name,
        settings=settings(solver),
        dead=tuple(int(column) for column in problem.dead),
    )


def _by_keyboard(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused this error: raised while numba enters a kernel, it arrives wrapped in a SystemError."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


def _start(problem: SaddlePoint, init: Any) -> tuple[Array, Array]:
    """theta and w to start from, with zeros where a feature is new or has no data."""
    given: tuple[Any, Any]
    if init is None:
        given = (np.zeros(0), np.zeros(0))
    elif isinstance(init, Result):
        given = (init.theta, init.w)
    elif isinstance(init, tuple):
        if len(init) != 2:
            raise ValueError(f"init has {len(init)} entries; a tuple must be (theta, w).")
        given = init
    else:
        given = (init, np.zeros(0))
    start = []
    for name, value, size in (("theta", given[0], problem.d), ("w", given[1], problem.k)):
        array = _weights("init", value)
        if array.ndim != 1 or len(array) > size or not np.isfinite(array).all():
            raise ValueError(
                f"init gives {name} of shape {array.shape}, but the problem has {size} weights there; it must be "
                "finite and no longer than that."
            )
        start.append(np.concatenate([array, np.zeros(size - len(array))]))
    start[0][problem.dead] = 0.0
    return start[0], start[1]


def _weights(name: str, value: Any) -> Array:
    """The weights in an argument, as floats."""
    array = array_of(name, value)
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}, which is not numeric. Give weights.")
    with np.errstate(over="ignore"):  # long doubles can exceed float64
        return array.astype(np.float64)


def _true_gap(problem: SaddlePoint, reference: Any, start: Array) -> Callable[[Array], float] | None:
    """theta -> its true gap, given the exact solution."""
    if reference is None:
        return None
    exact = Exact(problem, start)
    best = reference.theta if isinstance(reference, Result) else _weights("reference", reference)
    if best.shape != (problem.d,):
        raise ValueError(f"reference has shape {best.shape}, but the problem has {problem.d} weights.")
    if not exact.gap(best) <= 1e-6:
        raise ValueError(
            f"reference is not the minimiser of this problem: its gap is {exact.gap(best):.1e}. "
            "Solve with 'lstd' first."
        )
    return exact.gap
