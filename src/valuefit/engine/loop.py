"""The one loop: clock, pass budget, tolerance, history, seeds, callbacks and divergence all live here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from valuefit.engine.certificate import EASY, Certificate
from valuefit.engine.choice import rank
from valuefit.engine.result import Result
from valuefit.engine.statistical_tolerance import LOOSEST, PASSES, hoped_gap, supported_gap
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.solvers import find, refuse
from valuefit.solvers.auto import Auto
from valuefit.solvers.solver import FixedPoint, Solver, State, Steps, settings
from valuefit.typing import Array

BLOW_UP = 1e6  # a step-weighted squared gradient this much above the best one seen is divergence
SHORTEN = 4.0  # by this much, then, where the steps are ours to change
PATIENCE = 12  # how often before giving up
ROUNDING = 1e-14  # no gap is asked for below this in earnest
SMALLEST_GAP = 1e-28  # about the square of the rounding unit: a smaller gap is noise, and no tol below it is certified
FINEST = 1e-6  # the gap that tol="statistical" asks for at most
LOOK = 1.5  # passes that a first look at what is reported is worth, about
LOOKS = 3  # of them that may fail
SOONER = 2  # times that a certificate may be asked for a looser gap before one of 1e-6 would have it asked
EARLIER = 4.0  # how much larger than that a gap must be for an early look at it to pay


@dataclass(frozen=True)
class Progress:
    """What a callback sees after each epoch; `gap` is known only with a reference."""

    passes: float
    seconds: float
    residual: float
    gap: float | None
    theta: Array


class _Stopped(Exception):
    """A callback asked for the end."""


def solve(
    problem: Problem,
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
) -> Result:
    """Minimise F with one of the solvers until the gap is certified below `tol`, or the budget is spent.

    gap = (F(theta) - F*) / (F(0) - F*), with the starting point in place of 0 where theta = 0 is optimal.
    A pass touches every transition once; snapshots, moments and the stopping test count, choosing steps does not
    yet. Ctrl-C returns the best iterate so far. Same seed, machine, versions and threads: same bits.

    solver: a short name (`valuefit.solvers.names()`) or a solver with settings. tol: the gap promised by
    "converged"; 0 runs until the budget is spent, and below 1e-28, where gaps are rounding errors, none is
    certified; "statistical" stops where what is left is at most a tenth of what
    the noise of the log leaves open, or 1e-6. init: an earlier `Result`, a `(theta, w)` pair or a theta to
    start from, of the same or fewer features (what is new starts at 0). reference: the exact solution (an array
    or a `Result`); the history then holds the true gap of every epoch, free of charge. callback: called with a
    `Progress` after each epoch; return True to stop. reported: with tol="statistical", what the answer is wanted for:
    theta -> (the largest error of a reported number over what is allowed it, the passes of this look). Only these then
    stop the solver, once the gap is such that numbers on average are within what is allowed.
    """
    if not isinstance(problem, Problem):
        raise ValueError(
            f"solve takes a Problem, not {type(problem).__name__}: make one with valuefit.Problem(log, ...)."
        )
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed is {seed!r}; it must be a whole number, 0 or more.")
    solver = find(solver)
    if tol != "statistical" and not (isinstance(tol, int | float | np.number) and np.isfinite(tol) and tol >= 0):
        raise ValueError(f'tol is {tol!r}; it must be a finite number, 0 or more, or "statistical".')
    if not max_passes > 0:
        raise ValueError(f"max_passes is {max_passes}; it must be more than 0.")
    refuse(solver, problem)
    theta, w = _start(problem, init)
    true_gap = _true_gap(problem, reference, theta)
    names: list[str | Solver] = [solver]
    why = ""
    if isinstance(solver, Auto):
        chosen, why = rank(problem, 1e-6 if tol == "statistical" else float(tol), solver.memory)
        names = [*chosen]
    for place, name in enumerate(names):
        able = find(name)
        run = _Run(problem, able, tol, max_passes, max_seconds, true_gap, callback, reported)
        last = place + 1 == len(names)
        try:
            run.go(theta, w, np.random.default_rng(seed))
        except MemoryError as error:
            if last:
                raise
            why += f" {able.name} did not fit into memory ({error})."
            continue
        result = run.result(seed)
        if last or result.status not in ("diverged", "singular"):
            break
        why += f" {able.name} ended as {result.status}, so the next was taken."
    return replace(result, message=f"{result.message} {why}".strip())


class _Run:
    """One solve under way."""

    def __init__(
        self,
        problem: Problem,
        solver: Solver,
        tol: float | str,
        max_passes: float,
        max_seconds: float | None,
        true_gap: Callable[[Array], float] | None,
        callback: Callable[[Progress], Any] | None,
        reported: Callable[[Array], tuple[float, float]] | None,
    ) -> None:
        self.problem, self.solver = problem, solver
        self.statistical = tol == "statistical"
        self.tol = FINEST if self.statistical else float(tol)
        self.max_passes, self.max_seconds = max_passes, max_seconds
        self.true_gap, self.callback = true_gap, callback
        self.began = time.perf_counter()
        self.free = 0.0  # seconds spent on a history that was asked for
        self.passes, self.epochs, self.shortened = 0.0, 0, 0
        self.work = 0.0  # passes of epochs alone
        self.history: list[tuple[float, ...]] = []
        self.status, self.message = "budget", ""
        self.gap: float | None = None
        self.gap_of: State | None = None  # the iterate it belongs to
        self.unit = 0.0  # of the residual: |b|, or |B| at the start where b = 0
        self.residual, self.residual_of = 1.0, 0  # and the epoch in which it was looked at
        self.next_look = 1.0  # passes at which a method without a gradient is looked at again
        self.reported, self.looked = reported if self.statistical else None, False
        self.looks, self.look_cost = 0, LOOK
        # a gap that is enough for any one number is, times their count, enough for them on average
        self.share = float(problem.d - len(problem.dead)) if self.reported else 1.0
        self.hope = min(self.share * hoped_gap(problem), LOOSEST) if self.statistical else 0.0
        self.next_noise = np.inf  # passes at which the noise of the log is measured again
        if self.hope > EARLIER * FINEST:  # a long log supports more digits than are asked for
            if self.reported is None:
                self.next_noise = 0.0
            else:
                self.tol = self.hope
        self.look_below = 10 * (FINEST if self.statistical else self.tol)  # squared residual from which it is asked
        self.asked_at, self.asking_cost = 0.0, 10.0
        self.sooner = 0  # times it was asked earlier than for a gap of 1e-6
        self.gap_per_residual = 1.0  # the gap over the squared residual, as last seen

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began - self.free

    def go(self, theta: Array, w: Array, rng: np.random.Generator) -> None:
        self.state = self.best = State(theta, w)
        self.certificate = Certificate(self.problem, theta)
        self.best_merit = np.inf
        self.floor: float | None = None  # noise around the minimum is no divergence
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._loop(theta, w, rng)

    def _loop(self, theta: Array, w: Array, rng: np.random.Generator) -> None:
        try:
            self.state, cost = self.solver.init(self.problem, theta, w)
            self.best, self.weights = self.state, self.state.steps
            self.passes += cost
            self.asked_at = self.passes
            self._take(self.state)
            while not self._done(cost):
                state, cost = self.solver.epoch(self.problem, self.state, rng)
                self.passes += cost
                self.work += cost
                self.epochs += 1
                if not self._take(state) and not self._shorten():
                    return
        except (KeyboardInterrupt, SystemError) as error:
            if not _by_keyboard(error):
                raise
            self.status, self.message = "interrupted", "Stopped by the keyboard; this is the best iterate so far."
        except _Stopped:
            self.status, self.message = "interrupted", "Stopped by the callback; this is the best iterate so far."

    def _take(self, state: State) -> bool:
        """Take an epoch's outcome in and record it; False, and nothing taken, if it blew up."""
        if not (np.isfinite(state.theta).all() and np.isfinite(state.w).all()):
            return False
        gradient = self._gradient(state)
        if gradient is not None:
            merit = self._merit(gradient)
            if self.floor is None:
                self.floor = 1e-3 * max(merit, self._merit((np.zeros(0), self.problem.b)))
            if not merit <= BLOW_UP * max(self.best_merit, self.floor) or merit == np.inf:
                return False
            if merit <= self.best_merit:
                self.best, self.best_merit = state, merit
            size = float(np.linalg.norm(np.concatenate(gradient)))
            self.unit = self.unit or float(np.linalg.norm(self.problem.b)) or size
            self.residual = size / self.unit if size else 0.0
        self.state = state
        self.certificate.offer(moments=state.moments, whitening=state.whitening)
        if gradient is not None:
            self.residual_of = self.epochs
            self._record()
        return True

    def _measure(self, gap: float) -> None:
        """At about this gap: measure the noise of the log, where it may soon matter, and ask for what it supports."""
        if self.passes < self.next_noise or not self.epochs or self.state.finished or not gap > FINEST:
            return
        if gap <= 10 * self.hope and self._pays(min(gap, self.hope / EARLIER), PASSES):
            self.passes += PASSES
            self.next_noise = 3 * self.passes
            self._ask_for(supported_gap(self.problem, self.state.theta))

    def _pays(self, gap: float, cost: float) -> bool:
        """Whether going on from this gap to 1e-6, at the pace so far, would take more passes than these."""
        return bool(self.work * np.log(gap / FINEST) >= -np.log(min(gap, 0.1)) * cost)

    def _ask_for(self, gap: float) -> None:
        """Another gap to stop at."""
        self.tol = gap if gap > EARLIER * FINEST else FINEST

    def _merit(self, gradient: tuple[Array, Array]) -> float:
        """Squared gradient, weighed by the first steps, so that theta and w come in one unit."""
        of_theta, of_w = (float(part @ part) for part in gradient)
        value = self.weights[0] * of_theta + (self.weights[1] or self.weights[0]) * of_w
        return value if np.isfinite(value) else np.inf

    def _gradient(self, state: State) -> tuple[Array, Array] | None:
        """B(theta, w): the solver's own if it has one, else computed now and then, which counts."""
        if state.gradient is not None:
            return state.gradient
        if self.true_gap is None:
            if self.passes < self.next_look and not state.finished:
                return None
            self.passes += 1
            self.next_look = 1.25 * self.passes + 1
            return self.problem.B(state.theta, state.w)
        start = time.perf_counter()
        gradient = self.problem.B(state.theta, state.w)
        self.free += time.perf_counter() - start
        return gradient

    def _record(self) -> None:
        passes, seconds, residual, gap = self.passes, self.seconds, self.residual, None
        if self.true_gap is not None:
            start = time.perf_counter()
            gap = self.true_gap(self.state.theta)
            self.free += time.perf_counter() - start
        self.history.append((passes, seconds, residual) if gap is None else (passes, seconds, residual, gap))
        progress = Progress(passes, seconds, residual, gap, self.state.theta)
        if self.callback is not None and self.callback(progress):
            raise _Stopped

    def _shorten(self) -> bool:
        """After a blow-up: back to the best iterate with shorter steps, or, where they are not ours, the end."""
        steps = self.state.steps
        self.state = self.best
        if self.solver.guarded and self.shortened < PATIENCE:
            self.shortened += 1
            self.state = replace(self.best, steps=(steps[0] / SHORTEN, steps[1] / SHORTEN))
            return True
        used = " and ".join(f"{step:.1e}" for step in steps if step > 0)
        remedy = "Give smaller steps, or none."
        if isinstance(self.solver, FixedPoint) and self.solver.guarded:
            remedy = "This method can diverge off-policy; use 'svrg' or 'saga'."
        elif self.solver.guarded or not isinstance(self.solver, FixedPoint | Steps):
            remedy = "Numbers grew out of range: rescale rewards and features."
        self.status = "diverged"
        self.message = f"{self.solver.name} diverged at steps {used}; this is the best iterate before. {remedy}"
        return False

    def _done(self, cost: float) -> bool:
        """Whether the loop ends here, with status and message set."""
        if self._converged() and self._reported_hold():
            self.status = "converged"
            self.message = f"The gap is certified to be at most {self.gap:.1e}; {self._asked} was asked."
            if self.looked:
                self.message += " What is reported is within a tenth of its standard error of where it would end."
            return True
        if self.state.finished and self.gap is not None and self.gap <= ROUNDING:
            self.message = (
                f"Exact but for rounding, which leaves a gap of at most {self.gap:.1e}, above tol = {self.tol:.0e}."
            )
            return True
        if self.state.finished:
            self.status = "singular"
            self.message = (
                f"The moments are too nearly singular for {self.solver.name} to reach tol = {self.tol:.0e}. "
                "Add a ridge, or drop features that depend on one another."
            )
            return True
        if self.max_seconds is not None and self.seconds >= self.max_seconds:
            self.message = f"Stopped after {self.seconds:.1f} s. {self._standing()} Allow more with max_seconds."
            return True
        if self.epochs and self.passes + cost > self.max_passes:
            self.message = f"Stopped after {self.passes:.1f} passes. {self._standing()} Allow more with max_passes."
            return True
        return False

    @property
    def _asked(self) -> str:
        if not self.statistical:
            return f"tol = {self.tol:.0e}"
        return f'tol = "statistical", here {self.tol:.0e},'

    def _standing(self) -> str:
        known = f"the residual is {self.residual:.1e}"
        if self.gap is not None and np.isfinite(self.gap) and self.gap_of is self.state:
            known += f" and the gap at most {self.gap:.1e}"
        hint = ""
        if self.certificate.exact_cost < 0.2 * self.max_passes:
            hint = " 'lstd' is cheap here."
        return f"A gap below tol = {self.tol:.0e} is not shown yet: {known}.{hint}"

    def _converged(self) -> bool:
        if self.state.gap is not None:
            self.gap, self.gap_of = self.state.gap, self.state
        elif self.tol == 0:
            return False
        elif self.epochs == 0 and self.tol < 1 and not self.state.theta.any() and self.problem.b.any():
            return False  # the gap of theta = 0 is 1
        else:
            if not self.certificate.cheap:
                self._measure(self.residual**2)
            if self._worth_asking():
                self._ask()
            elif self._worth_asking_sooner():
                self.sooner += 1
                self._ask()
            else:
                return False
        if self.gap is None:
            return False
        self._measure(self.gap)
        return max(self.gap, SMALLEST_GAP) <= self.tol

    def _ask(self) -> None:
        """Look at the certificate."""
        spent = self.certificate.passes
        self.gap_of = self.state
        self.gap = self.certificate.gap(self.state.theta, self.state.w, tol=self.tol, allowance=self._allowance)
        self.asking_cost = self.certificate.passes - spent
        self.passes += self.asking_cost
        self.asked_at = self.passes
        if self.gap is not None and np.isfinite(self.gap) and self.residual:
            self.gap_per_residual = self.gap / self.residual**2
        # the gap falls like the squared residual: that says when another look is worth its passes
        wanted = FINEST if self.statistical else self.tol
        left = 0.1 if self.gap is None or not np.isfinite(self.gap) else wanted / max(self.gap, wanted)
        dear = self.asking_cost > 10 and self.tol <= wanted  # one that must not fail
        self.look_below = self.residual**2 * (0.3 * left if dear else left)

    def _reported_hold(self) -> bool:
        """Whether what is reported at this gap is near enough; if not, a smaller gap is asked for."""
        if self.reported is None or self.gap is None or self.gap <= FINEST:
            return True
        if self.looks == LOOKS or not self._pays(self.gap, self.look_cost * (1 if self.looks else 2)):
            self._ask_for(FINEST)  # the first look may fail
            return False
        off, cost = self.reported(self.state.theta)
        self.passes += cost
        self.looks += cost > 0
        self.look_cost = max(cost, self.look_cost)
        self.looked = off <= 1
        if self.looked:
            return True
        self._ask_for(self.gap * min(0.5, 0.5 / off**2))  # errors fall like the root of the gap
        return False

    @property
    def _allowance(self) -> float:
        """Passes that the certificate may take: a part of the budget, and of what is left of it."""
        share = min(0.25 * self.max_passes, self.max_passes - self.passes)
        # an epoch that cannot be cut short may end past the budget; what it found is still worth a cheap look
        return max(share, EASY) if self.certificate.cheap and self.passes > self.max_passes else share

    def _worth_asking(self) -> bool:
        if self.certificate.cheap:
            return True
        if self.residual_of == self.epochs and self.residual**2 <= self.look_below:
            return True
        return self.passes - self.asked_at >= 10 * max(self.asking_cost, 10.0)

    def _worth_asking_sooner(self) -> bool:
        """Whether the certificate may show a gap that the noise allows, and that saves more than asking again costs."""
        near = self.gap_per_residual * self.residual**2
        early = self.statistical and self.sooner < SOONER and self.residual_of == self.epochs
        return early and FINEST < near <= 0.3 * self.tol and self._pays(near, EASY)

    def result(self, seed: int) -> Result:
        state = self.state
        if self.status == "interrupted" and state.gradient is not None:
            state = self.best if self._merit(state.gradient) > 100 * self.best_merit else state
        objective = self.certificate.objective
        if state is not self.gap_of:
            self.gap = objective = None  # those were of another iterate
            if self.certificate.cheap and self.tol > 0:
                self.gap = self.certificate.gap(state.theta, state.w, tol=self.tol, allowance=EASY)
                objective = self.certificate.objective
        notes = [self.message, state.note]
        if len(self.problem.dead):
            listed = ", ".join(map(str, self.problem.dead[:5])) + (", ..." if len(self.problem.dead) > 5 else "")
            notes.append(f"Without data, hence with weight 0: {len(self.problem.dead)} features ({listed}).")
        if self.shortened:
            notes.append(f"The automatic steps were shortened {self.shortened} times.")
        columns = ["passes", "seconds", "residual", "gap"][: 3 if self.true_gap is None else 4]
        return Result(
            theta=state.theta,
            w=state.w,
            status=self.status,
            message=" ".join(note for note in notes if note),
            passes=self.passes,
            seconds=self.seconds,
            history=np.array(self.history, dtype=[(name, "f8") for name in columns]),
            objective=objective if state.objective is None else state.objective,
            gap=self.gap if self.gap is not None and np.isfinite(self.gap) else None,
            residual=self.residual,
            solver=self.solver.name,
            settings=settings(self.solver),
            tol="statistical" if self.statistical else self.tol,
            seed=int(seed),
            dead=tuple(int(column) for column in self.problem.dead),
        )


def _by_keyboard(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind this: while numba enters a kernel, it surfaces as a SystemError that it caused."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


def _start(problem: Problem, init: Any) -> tuple[Array, Array]:
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
        array = np.asarray(value, dtype=np.float64)
        if array.ndim != 1 or len(array) > size or not np.isfinite(array).all():
            raise ValueError(
                f"init gives {name} of shape {array.shape}, but the problem has {size} weights there; it must be "
                "finite and no longer than that."
            )
        start.append(np.concatenate([array, np.zeros(size - len(array))]))
    start[0][problem.dead] = 0.0
    return start[0], start[1]


def _true_gap(problem: Problem, reference: Any, start: Array) -> Callable[[Array], float] | None:
    """theta -> its true gap, given the exact solution."""
    if reference is None:
        return None
    exact = Exact(problem, start)
    best = reference.theta if isinstance(reference, Result) else np.asarray(reference, dtype=np.float64)
    if best.shape != (problem.d,):
        raise ValueError(f"reference has shape {best.shape}, but the problem has {problem.d} weights.")
    if not exact.gap(best) <= 1e-6:
        raise ValueError(
            f"reference is not the minimiser of this problem: its gap is {exact.gap(best):.1e}. "
            "Solve with 'lstd' first."
        )
    return exact.gap
