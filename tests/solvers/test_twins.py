"""Every kernel equals its naive twin update by update, in every combination of traits that its solver supports.

A wrong variance-reduced kernel can still converge, because the error multiplies a difference that vanishes. So these
tests do not check convergence: both versions draw the same rows, and their iterates must agree to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse

import naive
import valuefit as vf
from helpers.problems import problem_of
from helpers.twins import (
    CASES,
    METHODS,
    STEP_THETA,
    STEP_W,
    TOLERANCE,
    Case,
    Preset,
    S,
    apart,
    at_ends,
    cases_of,
    draws_for,
    first_steps,
    label,
    pairs,
    run,
    saddle,
    schedules,
    start_of,
)
from valuefit.solvers import registry


@pytest.mark.parametrize(("name", "case"), pairs(taken=True), ids=label)
def test_kernel_equals_its_twin_at_every_prefix_and_over_several_epochs(name: str, case: Case) -> None:
    log = case.log()
    problem, start, method = problem_of(log, case.storage), start_of(log), METHODS[name]
    assert problem.traits == case.traits
    assert len(problem.dead) == 0
    for lengths in schedules(problem.n):
        draws = draws_for(problem.n, lengths)
        found = run(method.make(lengths[0]), problem, start, draws)
        expected = method.twin(log, start, draws)
        for epoch in range(len(lengths)):
            assert apart(found[epoch], expected[epoch]) <= TOLERANCE[case.storage], (lengths, epoch)
        assert apart(expected[-1][:1], start[:1]) > 1e-3, "the twin did not move, so this compares nothing"


@pytest.mark.parametrize(("name", "case"), pairs(taken=False), ids=label)
def test_an_unsupported_combination_is_refused_with_a_sentence(name: str, case: Case) -> None:
    solver = METHODS[name].make(None)
    problem = problem_of(case.log(), case.storage)
    able = "|".join(kind for kind, cls in registry().items() if not case.traits & cls.refusals.keys())
    with pytest.raises(ValueError, match=rf"^{solver.name} cannot solve a problem with .* These can: .*({able})"):
        vf.solve(problem, solver)


def test_only_the_known_combinations_are_refused() -> None:
    elsewhere = {"shards", "device"}
    refused = {name: set(cls.refusals) - elsewhere for name, cls in registry().items() if set(cls.refusals) - elsewhere}
    square, both = {"more dual features"}, {"more dual features", "ridge"}
    assert refused == {"tdc": square, "flstd-sa": both, "ctd": both, "ilstd": both}
    anywhere = {name for name, cls in registry().items() if not elsewhere & set(cls.refusals)}
    assert anywhere == {"auto", "lstd", "krylov", "pdbg"}
    assert {name for name, cls in registry().items() if "device" not in cls.refusals} == anywhere | {"svrg"}


def test_every_solver_has_a_twin_here() -> None:
    compared = {method.make(None).name for method in METHODS.values()}
    assert compared | {"pdbg", "recursive-lstd", "ilstd", "lstd", "krylov", "catalyst", "auto"} == set(registry())


@pytest.mark.parametrize("name", METHODS)
def test_sparse_rows_with_dense_trace_rows_equal_the_twin(name: str) -> None:
    log = Case("dense", ratio=True, trace=0.7).log()
    problem, start, method = problem_of(log, "csr"), start_of(log), METHODS[name]
    assert problem.phi.sparse
    assert not problem.u.sparse
    draws = draws_for(problem.n, [3 * problem.n] * 2)
    found, expected = run(method.make(len(draws[0])), problem, start, draws), method.twin(log, start, draws)
    for epoch in range(2):
        assert apart(found[epoch], expected[epoch]) <= 1e-10


def test_sparse_cases_above_keep_their_trace_rows_sparse() -> None:
    for case in CASES:
        if case.storage == "csr" and case.trace:
            assert problem_of(case.log(), "csr").u.sparse


@pytest.mark.parametrize(("name", "trace"), [*((name, 0.0) for name in METHODS), ("svrg", 0.7), ("saga", 0.7)])
def test_sparse_float32_rows_equal_the_twin(name: str, trace: float) -> None:
    log = Case("csr", ratio=True, trace=trace).log()
    single = sparse.csr_array(log.Phi.astype(np.float32))
    rounded = single.toarray().astype(np.float64)
    rest = (log.now, log.next, log.reward, log.discount, log.ratio, log.episode)
    problem, start = vf.Problem.from_rows(single, *rest, trace=trace), start_of(log)
    assert problem.traits >= {"sparse", "float32"}
    draws, method = draws_for(problem.n, [2 * problem.n] * 2), METHODS[name]
    found = run(method.make(len(draws[0])), problem, start, draws)
    expected = method.twin(log._replace(Phi=rounded, Psi=rounded), start, draws)
    for epoch in range(2):
        assert apart(found[epoch], expected[epoch]) <= 1e-9


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("name", METHODS)
def test_feature_without_data_is_left_out_of_every_update(name: str, storage: str) -> None:
    """It is zero in every `now` row but not in every `next` row; the twin runs with that column set to zero."""
    log = Case(ratio=True, trace=0.7).log()
    only_next = np.setdiff1d(np.arange(len(log.Phi)), log.now)
    Phi = log.Phi.copy()
    Phi[log.now, 1] = 0.0
    assert Phi[only_next, 1].any()
    problem = problem_of(log._replace(Phi=Phi, Psi=Phi), storage)
    assert problem.dead.tolist() == [1]
    zeroed = Phi * [1.0, 0.0, 1.0]
    start, draws = (np.array([1.0, 0.0, -1.0]), np.array([0.5, 0.0, 2.0])), draws_for(problem.n, [problem.n] * 2)
    found = run(METHODS[name].make(problem.n), problem, start, draws)
    expected = METHODS[name].twin(log._replace(Phi=zeroed, Psi=zeroed), start, draws)
    for epoch in range(2):
        assert apart(found[epoch], expected[epoch]) <= 1e-10
        assert found[epoch][0][1] == 0


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_log_of_a_single_step_equals_the_twin(name: str, ends: bool) -> None:
    Phi = np.array([[1.0, 0.5, -1.0], [1.0, -2.0, 0.3]])
    one = [np.array(values) for values in ([0], [-1 if ends else 1], [2.0], [0.0 if ends else 0.9], [1.5], [7])]
    log = naive.Log(Phi, Phi, *one, trace=0.7)
    problem, start, draws = problem_of(log), start_of(log), draws_for(1, [5, 5])
    found, expected = run(METHODS[name].make(5), problem, start, draws), METHODS[name].twin(log, start, draws)
    for epoch in range(2):
        assert apart(found[epoch], expected[epoch]) <= 1e-10


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("trace", [0.0, 0.7])
def test_start_at_zero_equals_the_twin(name: str, trace: float) -> None:
    log = Case(ratio=True, trace=trace).log()
    problem, start, method = problem_of(log), (np.zeros(3), np.zeros(3)), METHODS[name]
    draws = draws_for(problem.n, [problem.n] * 3)
    found, expected = run(method.make(problem.n), problem, start, draws), method.twin(log, start, draws)
    for epoch in range(3):
        assert apart(found[epoch], expected[epoch]) <= 1e-10


@pytest.mark.parametrize("name", ["gtd2", "tdc"])
def test_infinite_decay_keeps_the_steps_constant(name: str) -> None:
    log = Case(ratio=True, ridge=0.1).log()
    problem, start = problem_of(log), start_of(log)
    method = saddle(registry()[name], getattr(naive, name), math.inf, decay=math.inf)
    draws = draws_for(problem.n, [problem.n] * 5)
    found, expected = run(method.make(problem.n), problem, start, draws), method.twin(log, start, draws)
    for epoch in range(5):
        assert apart(found[epoch], expected[epoch]) <= 1e-10


@pytest.mark.parametrize("case", CASES, ids=label)
def test_batch_operator_and_its_byproducts_equal_the_twin(case: Case) -> None:
    log = case.log()
    problem, (theta, w) = problem_of(log, case.storage), start_of(log)
    expected = naive.B(log, theta, w)
    tolerance = TOLERANCE[case.storage]
    assert apart(problem.B(theta, w), expected) <= tolerance
    assert apart(S.SVRG(inner=1).init(problem, theta, w)[0].gradient, expected) <= tolerance
    assert apart(S.SAGA(inner=1).init(problem, theta, w)[0].gradient, expected) <= tolerance


@pytest.mark.parametrize("case", CASES, ids=label)
def test_saga_keeps_the_mean_of_its_table_as_gradient(case: Case) -> None:
    """After every row was drawn at one point, the mean of the table is the gradient there, for any earlier table."""
    log = case.log()
    problem, start = problem_of(log, case.storage), start_of(log)
    solver = S.SAGA(step_theta=1e-300, step_w=1e-300, inner=problem.n)
    state, _ = solver.init(problem, *(10 * part for part in start))
    moved = replace(state, theta=start[0], w=start[1])
    after, _ = solver.epoch(problem, moved, Preset([np.arange(problem.n)], problem.n))
    assert apart(after.gradient, naive.B(log, *start)) <= TOLERANCE[case.storage]


@pytest.mark.parametrize("case", CASES, ids=label)
def test_pdbg_on_the_log_equals_the_twin(case: Case) -> None:
    log = case.log()
    problem, start = problem_of(log, case.storage), start_of(log)
    solver = S.PDBG(step_theta=STEP_THETA, step_w=STEP_W)
    state, _ = solver.init(problem, *start)
    for expected in naive.pdbg(log, *start, 12, STEP_THETA, STEP_W):
        state, info = solver.epoch(problem, state, None)
        assert info.passes == 1
        assert apart((state.theta, state.w), expected) <= TOLERANCE[case.storage]
        assert apart(state.gradient, naive.B(log, *expected)) <= TOLERANCE[case.storage]


@pytest.mark.parametrize("case", CASES, ids=label)
def test_pdbg_on_the_moments_equals_the_twin(case: Case) -> None:
    log = case.log()
    problem, start = problem_of(log, case.storage), start_of(log)
    n, d, k = problem.n, problem.d, problem.k
    solver = S.PDBG(step_theta=STEP_THETA, step_w=STEP_W, precompute=True)
    state, _ = solver.init(problem, *start)
    trajectory, iterations = naive.pdbg(log, *start, 40, STEP_THETA, STEP_W), 0
    for _ in range(4):
        state, info = solver.epoch(problem, state, None)
        # an iteration reads A twice and C once, a pass reads two rows of phi for each step
        row = problem.phi.stored / problem.phi.shape[0]
        done = info.passes * 2 * n * row / (2 * k * d + k * k)
        assert abs(done - round(done)) < 1e-9
        iterations += round(done)
        expected = trajectory[iterations - 1]
        assert apart((state.theta, state.w), expected) <= TOLERANCE[case.storage]
        assert apart(state.gradient, naive.B(log, *expected)) <= TOLERANCE[case.storage]


# ---- solvers that read the log in order --------------------------------------------------------------------


def prefixes_with_data(log: naive.Log, storage: str) -> list[tuple[int, naive.Log, vf.Problem]]:
    """Problems made of the first t steps, for every t at which each feature has data."""
    logs = [(t, first_steps(log, t)) for t in range(1, len(log.now) + 1)]
    prefixes = [(t, part, problem_of(part, storage)) for t, part in logs]
    return [prefix for prefix in prefixes if len(prefix[2].dead) == 0]


def saddle_matrix(log: naive.Log, e: float) -> np.ndarray:
    """n [[ridge I, -A'], [A, C]] + e I."""
    A, _, C = naive.moments(log)
    n, d = len(log.now), log.Phi.shape[1]
    return n * np.block([[log.ridge * np.eye(d), -A.T], [A, C]]) + e * np.eye(sum(A.shape))


@pytest.mark.parametrize("case", CASES, ids=label)
def test_recursive_lstd_equals_the_twin_after_every_step(case: Case) -> None:
    log = case.log()
    solver, compared = S.RecursiveLSTD(initial=0.05), 0
    for t, part, problem in prefixes_with_data(log, case.storage):
        e = 0.05 * sum(float(psi @ psi) for _, _, psi, _ in naive.steps(part))
        state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
        state, _ = solver.epoch(problem, state, None)
        assert apart((state.theta, state.w), naive.recursive_lstd(part, e)[-1]) <= TOLERANCE[case.storage], t
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize("case", CASES, ids=label)
def test_recursive_lstd_keeps_the_inverse_and_refines_with_it(case: Case) -> None:
    log = case.log()
    problem, (theta, w) = problem_of(log, case.storage), start_of(log)
    e = 0.05 * sum(float(psi @ psi) for _, _, psi, _ in naive.steps(log))
    P = np.linalg.inv(saddle_matrix(log, e))
    solver = S.RecursiveLSTD(initial=0.05)
    state, _ = solver.init(problem, theta, w)
    for _ in range(3):
        state, _ = solver.epoch(problem, state, None)
        assert apart((state.memory,), (P,)) <= TOLERANCE[case.storage]
        x = np.concatenate([theta, w]) - problem.n * P @ np.concatenate(naive.B(log, theta, w))
        theta, w = x[: problem.d], x[problem.d :]
        assert apart((state.theta, state.w), (theta, w)) <= TOLERANCE[case.storage]


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("case", cases_of(S.ILSTD), ids=label)
def test_ilstd_equals_the_twin_after_every_step_and_in_later_epochs(case: Case, dimensions: int) -> None:
    log = case.log()
    theta, w = start_of(log)
    solver = S.ILSTD(step=0.3, dimensions=dimensions)
    trajectory = naive.ilstd(log, theta, 4, 0.3, dimensions)
    prefixes = prefixes_with_data(log, case.storage)
    for t, _, problem in prefixes:
        state, _ = solver.epoch(problem, solver.init(problem, theta, w)[0], None)
        assert apart((state.theta,), trajectory[t - 1][:1]) <= TOLERANCE[case.storage], t
    assert len(prefixes) >= 8
    A, b, _ = naive.moments(log)
    for epoch in range(2, 5):
        state, _ = solver.epoch(problem, state, None)
        assert apart((state.theta,), trajectory[epoch * problem.n - 1][:1]) <= TOLERANCE[case.storage]
        assert apart(state.gradient, (np.zeros(problem.d), A @ state.theta - b)) <= TOLERANCE[case.storage]


@pytest.mark.parametrize("case", [c for c in CASES if c.more or c.ridge], ids=label)
def test_ilstd_refuses_a_ridge_and_more_dual_features(case: Case) -> None:
    with pytest.raises(ValueError, match=r"^ilstd cannot solve a problem with (ridge|more dual features): "):
        vf.solve(problem_of(case.log(), case.storage), "ilstd")


@pytest.mark.parametrize("case", CASES, ids=label)
def test_lstd_equals_the_twin(case: Case) -> None:
    log = case.log()
    problem = problem_of(log, case.storage)
    state, info = S.LSTD().epoch(problem, S.LSTD().init(problem, *start_of(log))[0], None)
    assert apart((state.theta, state.w), naive.minimiser(log)) <= 100 * TOLERANCE[case.storage]
    assert info.objective == pytest.approx(naive.objective(log, state.theta), abs=1e-10)


# ---- when the running scale underflows ---------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("trace", [0.0, 0.7])
@pytest.mark.parametrize("shrunk", [0.5, 0.9, 1 - 1e-9, 1.0, 1.5])
@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_large_ridge_times_step_equals_the_twin(name: str, shrunk: float, trace: float, storage: str) -> None:
    """Each update scales theta by 1 - step_theta ridge; the product of these factors leaves float64's range."""
    log = Case(storage, ratio=True, trace=trace, ridge=shrunk / STEP_THETA).log()
    problem, start, method = problem_of(log, storage), start_of(log), METHODS[name]
    for lengths in ([1] * 4, [400, 400]):  # 0.5^400 is below 1e-100
        draws = draws_for(problem.n, lengths)
        found, expected = run(method.make(lengths[0]), problem, start, draws), method.twin(log, start, draws)
        for epoch in range(len(lengths)):
            assert apart(found[epoch], expected[epoch]) <= 1e-10


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("trace", [0.0, 0.7])
@pytest.mark.parametrize("step_w", [0.5, 0.9, 1 - 1e-9, 1.0, 1.2])
@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_identity_metric_with_dual_step_near_one_equals_the_twin(
    name: str, step_w: float, trace: float, storage: str
) -> None:
    log = Case(storage, ratio=True, trace=trace, ridge=0.9 / 0.004, identity=True).log()
    problem, start = problem_of(log, storage), start_of(log)
    twin = getattr(naive, name)
    for lengths in ([1] * 4, [400, 400]):
        draws = draws_for(problem.n, lengths)
        solver = registry()[name](step_theta=0.004, step_w=step_w, inner=lengths[0])
        found = run(solver, problem, start, draws)
        expected = at_ends(twin(log, *start, draws, 0.004, step_w), draws)
        for epoch in range(len(lengths)):
            assert apart(found[epoch], expected[epoch]) <= 1e-10


# ---- the comparison detects faults -------------------------------------------------------------------------


def _with(change: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple]) -> Callable:
    """`naive.matrices` with A_t, b_t, C_t changed."""
    right = naive.matrices
    return lambda log, step: change(*right(log, step))


FAULTS = {
    "A_t transposed": lambda A, b, C: (A.T, b, C),
    "the sign of A_t": lambda A, b, C: (-A, b, C),
    "the sign of b_t": lambda A, b, C: (A, -b, C),
    "no C_t": lambda A, b, C: (A, b, 0 * C),
    "C_t a little off": lambda A, b, C: (A, b, (1 + 1e-6) * C),
    "A_t a little off": lambda A, b, C: ((1 + 1e-6) * A, b, C),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_comparison_detects_a_fault_in_the_matrices(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Case(ratio=True, trace=0.7, ridge=0.1).log()
    problem, start, method = problem_of(log), start_of(log), METHODS[name]
    draws = draws_for(problem.n, [problem.n] * 2)
    found = run(method.make(problem.n), problem, start, draws)
    assert apart(found[1], method.twin(log, start, draws)[1]) <= 1e-10
    monkeypatch.setattr(naive, "matrices", _with(FAULTS[fault]))
    wrong = method.twin(log, start, draws)
    assert apart(found[0], wrong[0]) > 1e-8
    assert apart(found[1], wrong[1]) > 1e-8


@pytest.mark.parametrize("fault", ["one draw", "order", "ridge", "ratio", "trace", "episodes", "terminal"])
@pytest.mark.parametrize("name", ["svrg", "saga", "gtd2", "tdc"])
def test_comparison_detects_a_fault_in_the_log_or_the_draws(name: str, fault: str) -> None:
    log = Case(ratio=True, trace=0.7, ridge=0.1).log()
    problem, start, method = problem_of(log), start_of(log), METHODS[name]
    draws = draws_for(problem.n, [problem.n] * 2)
    found = run(method.make(problem.n), problem, start, draws)[1]
    assert apart(found, method.twin(log, start, draws)[1]) <= 1e-10
    if fault == "one draw":
        draws[1][-1] = (draws[1][-1] + 1) % problem.n
    elif fault == "order":
        draws[0] = draws[0][::-1]
    else:
        ended = log.next == -1
        log = log._replace(
            **{
                "ridge": {"ridge": 0.0},
                "ratio": {"ratio": np.ones(problem.n)},
                "trace": {"trace": 0.69},
                "episodes": {"episode": np.zeros(problem.n, int)},
                "terminal": {
                    "next": np.where(ended, log.now, log.next),
                    "discount": np.where(ended, 0.9, log.discount),
                },
            }[fault]
        )
    assert apart(found, method.twin(log, start, draws)[1]) > 1e-6


def test_comparison_detects_a_snapshot_that_is_not_updated() -> None:
    log = Case(ratio=True).log()
    problem, start = problem_of(log), start_of(log)
    draws = draws_for(problem.n, [problem.n] * 2)
    found = run(METHODS["svrg"].make(problem.n), problem, start, draws)[1]
    once = METHODS["svrg"].twin(log, start, [np.concatenate(draws)])[0]
    assert apart(found, once) > 1e-4


def test_comparison_detects_a_table_that_is_not_updated() -> None:
    """SVRG is SAGA with a constant table: equal until a row is drawn twice, different afterwards."""
    log = Case(ratio=True).log()
    problem, start = problem_of(log), start_of(log)
    for draws, same in (([np.array([4])], True), ([np.array([4, 4, 7, 4])], False)):
        found = run(METHODS["saga"].make(len(draws[0])), problem, start, draws)[0]
        assert (apart(found, METHODS["svrg"].twin(log, start, draws)[0]) <= 1e-10) == same
