"""Krylov: what it minimises, what its sketch guarantees, what it costs, and what it does when it cannot."""

import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given
from hypothesis import strategies as st

import naive
import valuefit as vf
from helpers.problems import Oracle, chain, collinear, cosines, hard, problem_of, slow_process, small
from valuefit.precondition import factor as module
from valuefit.precondition.preconditioner import Diagonal, diagonal_preconditioner
from valuefit.problem.cost import Cost
from valuefit.problem.exact import Exact
from valuefit.problem.gap import energy_below
from valuefit.solvers.krylov import Krylov

FEW_ROWS = {"fixed point": {}, "ratio": {"ratio": True}, "trace": {"trace": 0.7}, "ridge": {"ridge": 1e-2}}


def states(problem, count, solver=None):
    """The first states of a run from zero."""
    solver = solver or Krylov()
    state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
    out = [state]
    for _ in range(count):
        state, _ = solver.epoch(problem, state, np.random.default_rng(0))
        out.append(state)
    return out


@pytest.mark.parametrize("storage", ["dense", "csr", "float32"])
def test_oracles(oracle, storage):
    problem = oracle.problem(storage)
    result = vf.solve(problem, "krylov", tol=1e-13)
    assert result.status == "converged"
    assert "directly" not in result.message
    assert Exact(problem).gap(result.theta) <= 1e-12
    if storage != "float32":
        np.testing.assert_allclose(result.theta, oracle.theta, atol=1e-5)
        assert result.objective == pytest.approx(oracle.objective_at_theta, rel=1e-6, abs=1e-12)


# ---- the naive check: the same minimum over the same subspace, from explicit powers and a least-squares solve


def unit_images(function, size):
    return np.column_stack([function(column) for column in np.eye(size)])


@pytest.mark.parametrize("kind", FEW_ROWS)
def test_iterates_minimise_the_norm_of_the_residual_over_the_krylov_space(monkeypatch, kind):
    monkeypatch.setattr(module, "MAX_ROWS", 6.0)
    problem = cosines(600, 12, **FEW_ROWS[kind])
    path = states(problem, 4)
    system = path[0].memory.equations
    assert system.preconditioner.excess > 1
    A, b, C = problem.moments()
    if problem.ridge:
        K = np.block([[problem.ridge * np.eye(12), -A.T], [A, C]])
        f = np.concatenate([np.zeros(12), b])
    else:
        K, f = A, b
    inverse = unit_images(lambda r: system.direction(r, system.dual(r)), len(f))
    norm = unit_images(system.dual, len(f))
    np.testing.assert_allclose(norm, norm.T, rtol=1e-9, atol=1e-9 * np.abs(norm).max())
    half = np.linalg.cholesky((norm + norm.T) / 2).T
    np.testing.assert_allclose(unit_images(system.apply, len(f)), K, atol=1e-12)
    powers = [inverse @ f]
    for count, state in enumerate(path[1:], start=1):
        basis = np.linalg.qr(np.column_stack(powers))[0]
        best = basis @ np.linalg.lstsq(half @ K @ basis, half @ f, rcond=None)[0]
        np.testing.assert_allclose(state.memory.x, best, rtol=1e-6, atol=1e-8 * np.abs(best).max())
        powers.append(inverse @ (K @ powers[-1]))
        assert count == len(state.memory.basis)


@pytest.mark.parametrize("kind", FEW_ROWS)
def test_the_residual_that_is_tracked_is_the_true_one(monkeypatch, kind):
    monkeypatch.setattr(module, "MAX_ROWS", 6.0)
    problem = cosines(900, 20, spread=0.4, **FEW_ROWS[kind])
    for state in states(problem, 12):
        B = problem.B(state.theta, state.w)
        for tracked, true in zip(state.gradient, B, strict=True):
            np.testing.assert_allclose(tracked, true, atol=1e-12 * (1 + np.abs(state.theta).max()))


def test_a_state_can_be_returned_to():
    problem = cosines(600, 12)
    third = states(problem, 3)[-1]
    before = third.theta.copy(), len(third.memory.basis)
    one, two = (Krylov().epoch(problem, third, np.random.default_rng(0))[0] for _ in range(2))
    assert one.theta.tobytes() == two.theta.tobytes()
    assert np.array_equal(third.theta, before[0])
    assert len(third.memory.basis) == before[1]


# ---- the sketch ------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(20, 200), st.booleans())
def test_the_sketch_is_at_most_excess_times_C(seed, d, n, cross):
    rng = np.random.default_rng(seed)
    rows = rng.standard_t(1.5, (n + 1, d))
    problem = chain(rows, rng.standard_normal(n))
    sketched = module.sketch(problem, size=2 * d, cross=cross)
    slack = sketched.excess * problem.C - sketched.C
    assert np.linalg.eigvalsh(slack)[0] >= -1e-9 * np.abs(problem.C).max() * sketched.excess
    assert sketched.excess == -(-n // (2 * d))


@pytest.mark.parametrize("kind", ["even", "heavy tails", "one row of its own direction"])
def test_the_factor_is_close_whatever_the_rows(kind):
    """Sampling misses the row that alone carries a direction; sums of all rows do not."""
    rng = np.random.default_rng(0)
    rows = rng.standard_t(1.5, (4001, 20)) if kind == "heavy tails" else rng.standard_normal((4001, 20))
    if kind == "one row of its own direction":
        rows[:, 3] = 0.0
        rows[1717, 3] = 1.0
    problem = chain(rows, rng.standard_normal(4000))
    factor = module.factorise(problem, module.sketch(problem, size=320, cross=False))
    values = np.sort(np.linalg.eigvals(unit_images(factor.dual, 20) @ problem.C).real)
    assert values[0] >= 1 / factor.likely
    assert values[-1] <= 5


def test_few_distinct_rows_are_all_taken():
    problem = Oracle(0).problem()
    assert states(problem, 0)[0].memory.equations.preconditioner.excess == 1.0


@pytest.mark.parametrize("cross", [False, True])
def test_dependent_columns_are_left_out_of_the_factor(cross):
    rng = np.random.default_rng(0)
    x = slow_process(rng, 900, 6)
    problem = chain(np.column_stack([x, x[:, 0] + x[:, 1], np.zeros(901)]), rng.standard_normal(900))
    factor = module.factorise(problem, module.sketch(problem, size=60, cross=cross))
    assert len(factor.kept) == 6
    assert factor.clear
    r = problem.b
    assert r @ factor.dual(r) * factor.excess >= r @ np.linalg.pinv(problem.C, rcond=1e-13) @ r


def test_energy_from_below():
    problem = cosines(900, 15)
    factor = module.factorise(problem, module.sketch(problem, size=60, cross=False))
    true = problem.b @ np.linalg.solve(problem.C, problem.b)
    below, passes = energy_below(problem, factor, problem.b)
    assert 0.6 * true <= below <= true
    assert passes == 0.5


# ---- a given preconditioner -------------------------------------------------------------------------


def identity(problem):
    return Diagonal(np.ones(problem.k), np.ones(problem.d), problem.ridge, np.inf, 0.0)


def exact(problem):
    return module.dense_preconditioner(problem, module.sketch(problem, size=problem.n, cross=True))


GIVEN = {"identity": identity, "diagonal": diagonal_preconditioner, "exact": exact}


@pytest.mark.parametrize("settings", [{}, {"ridge": 1e-2}, {"trace": 0.7}])
@pytest.mark.parametrize("name", GIVEN)
def test_any_preconditioner_leads_to_the_same_solution(name, settings):
    problem = cosines(600, 8, **settings)
    result = vf.solve(problem, Krylov(preconditioner=GIVEN[name]), tol=1e-8)
    assert (result.status, result.solver) == ("converged", "krylov"), result.message
    assert Exact(problem).gap(result.theta) <= 1e-8
    assert result.settings["preconditioner"] == GIVEN[name].__name__


@pytest.mark.parametrize("settings", [{}, {"ridge": 1e-2}])
def test_the_exact_inverse_takes_one_iteration(settings):
    problem = cosines(600, 8, **settings)
    first, second = states(problem, 1, Krylov(preconditioner=exact))
    assert second.memory.trail[-1] <= 1e-20 * first.memory.trail[0]
    assert states(problem, 1, Krylov(preconditioner=identity))[1].memory.trail[-1] > 1e-4 * first.memory.trail[0]


def test_a_given_preconditioner_is_made_once_and_never_replaced(monkeypatch):
    made = []

    def loose(problem):
        made.append(problem)
        return replace(exact(problem), L=1e3 * np.eye(problem.k), lu=None, excess=10.0)

    monkeypatch.setattr("valuefit.solvers.krylov.precondition", lambda problem, **settings: pytest.fail("replaced"))
    monkeypatch.setattr(Cost, "affords_factor", lambda *sizes, **limits: True)
    problem = cosines(600, 8)
    solver = Krylov(preconditioner=loose)
    state = states(problem, 1, solver)[-1]
    stalled = replace(state, memory=state.memory._replace(stalled=True))
    _, info = solver.epoch(problem, stalled, np.random.default_rng(0))
    assert info.finished
    assert made == [problem]


# ---- cost and promise -----------------------------------------------------------------------------


def cell(kind):
    """Small relatives of the benchmark's dense cells."""
    rng = np.random.default_rng(0)
    n, d = 6000, 60
    if kind == "Student rows":
        rows = rng.standard_t(2.0, (n + 1, d))
        return chain(rows, rows[:-1, 0] + rng.standard_normal(n))
    if kind == "collinear bumps":
        x = slow_process(rng, n, 2)
        rows = np.exp(-((x[:, None] - x[rng.integers(0, n, d)]) ** 2).sum(axis=2) / 0.5)
        return chain(rows, x[:-1, 0])
    settings = {
        "smooth": {"spread": 0.3},
        "ratio": {"ratio": True},
        "trace": {"trace": 0.8},
        "discount": {"discount": 0.99},
        "ridge": {"ridge": 1e-3},
        "small ridge": {"ridge": 1e-5},
        "huge ridge": {"ridge": 1e2},
        "identity": {"metric": "identity"},
    }
    return cosines(n, d, **settings.get(kind, {}))


CELLS = [
    "even", "smooth", "ratio", "trace", "discount", "ridge", "small ridge", "huge ridge", "Student rows",
    "collinear bumps", "identity",
]  # fmt: skip


@pytest.mark.parametrize("kind", CELLS)
def test_dense_problems_take_at_most_30_passes(kind):
    problem = cell(kind)
    result = vf.solve(problem, "krylov", tol=1e-6)
    assert result.status == "converged", result.message
    assert "directly" not in result.message
    assert result.passes <= 30
    true = Exact(problem).gap(result.theta)
    assert 0.9 * true <= result.gap <= 1e-6


@pytest.mark.parametrize("kind", ["even", "ridge", "ratio"])
def test_what_is_read_is_counted(monkeypatch, kind):
    problem = cell(kind)
    calls = []
    for name in ("A_dot", "residual", "B", "At_dot", "C_dot"):
        method = getattr(problem, name)
        monkeypatch.setattr(problem, name, lambda *x, method=method, name=name: (calls.append(name), method(*x))[1])
    result = vf.solve(problem, "krylov", tol=1e-6)
    setup = states(problem, 0)[0].memory.equations.preconditioner.passes
    assert setup > 1
    assert result.passes >= len(calls) - 1 + setup - 1


def test_one_epoch_costs_about_a_pass():
    problem = cell("even")
    solver = Krylov()
    state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
    _, info = solver.epoch(problem, state, np.random.default_rng(0))
    assert 1 <= info.passes < 1.1


def test_a_warm_start_is_used():
    problem = cell("even")
    cold = vf.solve(problem, "krylov", tol=1e-6)
    warm = vf.solve(problem, "krylov", tol=1e-6, init=cold.theta * (1 + 1e-4))
    assert warm.passes < cold.passes - 3


def test_all_rewards_zero():
    """F(0) = F*: the start is the unit of the gap."""
    rows = np.random.default_rng(0).standard_normal((201, 4))
    problem = chain(rows, np.zeros(200))
    assert vf.solve(problem, "krylov").status == "converged"
    result = vf.solve(problem, "krylov", init=np.ones(4), tol=1e-8)
    assert result.status == "converged"
    assert problem.objective(result.theta) <= 2e-8 * problem.objective(np.ones(4))


# ---- what it does when it cannot ------------------------------------------------------------------


def test_a_singular_A_is_solved_directly_and_the_message_says_so():
    """The discounted dynamics have an eigenvalue 1 within the features: b is out of reach, F* > 0."""
    rng = np.random.default_rng(0)
    x = slow_process(rng, 400, 4)
    doubled = np.where(np.arange(401) % 2 == 0, 1.0, 1 / 0.9)  # v = phi - 0.9 phi' is 0 on half of the steps
    rows = np.column_stack([x, doubled * (1 + 0 * x[:, 0])])
    ratio = np.where(np.arange(400) % 2 == 0, 1.0, 0.0)
    problem = vf.Problem.from_rows(rows, np.arange(400), np.arange(1, 401), x[:-1, 0] + 1, 0.9, ratio)
    exact = Exact(problem)
    assert exact.rank == 4
    assert exact.objective(exact.theta) > 1e-3
    result = vf.solve(problem, "krylov", tol=1e-8)
    assert result.status == "converged"
    assert "solved directly, as by 'lstd'" in result.message
    assert "rank 4 of 5" in result.message
    assert exact.gap(result.theta) <= 1e-12


def doubtful_rank():
    """Eigenvalues of C on both sides of what counts as zero: the cut decides F itself."""
    rng = np.random.default_rng(0)
    x = slow_process(rng, 1500, 2)
    rows = np.exp(-((x[:, None] - x[rng.integers(0, 1500, 60)]) ** 2).sum(axis=2) / 8)
    return chain(rows, x[:-1, 0], ridge=1e-6)


def test_a_doubtful_rank_with_a_ridge_is_solved_directly_and_the_message_says_so():
    problem = doubtful_rank()
    result = vf.solve(problem, "krylov", tol=1e-6)
    assert result.status == "converged"
    assert "The rank of C is in doubt; this was solved directly" in result.message
    assert Exact(problem).gap(result.theta) <= 1e-6


def test_the_direct_solve_goes_on_from_the_same_budget_and_history():
    """The passes of both count, and a failed attempt is not hidden."""
    problem = doubtful_rank()
    result, direct = (vf.solve(problem, name, tol=1e-6) for name in ("krylov", "lstd"))
    assert (result.solver, direct.solver) == ("lstd", "lstd")
    assert result.theta.tobytes() == direct.theta.tobytes()
    setup = states(problem, 0)[0].memory.equations.preconditioner.passes
    assert result.passes >= direct.passes + setup
    assert len(result.history) > len(direct.history)
    assert (np.diff(result.history["passes"]) >= 0).all()


def test_a_direct_solve_beyond_the_budget_is_not_begun():
    """What krylov has is returned, with the price of going on."""
    result = vf.solve(doubtful_rank(), "krylov", tol=1e-6, max_passes=1.0)
    assert (result.solver, result.status) == ("krylov", "budget")
    assert re.search(r"in doubt. 'lstd' would solve it in about \d+ passes, .* s: raise max_passes", result.message)


def test_without_memory_for_the_moments_it_goes_on(monkeypatch):
    problem = cell("even")
    state = states(problem, 3)[-1]
    stalled = replace(state, memory=state.memory._replace(stalled=True))
    monkeypatch.setattr(Cost, "affords_factor", lambda *sizes, **limits: False)
    _, info = Krylov().epoch(problem, stalled, np.random.default_rng(0))
    assert info.finished
    assert info.note.startswith("Krylov iterations stalled at")
    monkeypatch.setattr("valuefit.solvers.krylov.memory_limit", lambda: 1000)
    after, info = Krylov().epoch(problem, stalled, np.random.default_rng(0))
    assert not info.finished
    assert not after.memory.stalled
    assert np.array_equal(after.theta, state.theta)


def test_the_sketch_grows_when_progress_stalls(monkeypatch):
    problem = cell("even")
    monkeypatch.setattr(module, "MIN_ROWS", 1.0)
    monkeypatch.setattr(module, "MAX_ROWS", 1.0)
    monkeypatch.setattr("valuefit.solvers.krylov.STALL_WINDOWS", 2)
    result = vf.solve(problem, "krylov", tol=1e-6)
    path = states(problem, 40)
    growths = [state.memory.growth for state in path if state.memory]
    assert growths[0] == 1.0
    assert growths[-1] >= 4.0
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= 1e-6


@pytest.mark.parametrize(
    "make", [collinear, lambda: collinear(ridge=0.01), lambda: small(0, k=7), lambda: small(3, k=4)]
)
def test_rank_deficient_and_rectangular_problems(make):
    problem = make()
    result = vf.solve(problem, "krylov", tol=1e-10)
    assert result.status == "converged", result.message
    assert Exact(problem).gap(result.theta) <= 1e-9


@pytest.mark.parametrize("kind", ["five features a thousand times smaller", "nearly equal pairs", "a huge ridge"])
def test_hard_problems_are_solved(kind):
    problem = hard(kind)
    result = vf.solve(problem, "krylov", tol=1e-6)
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= 1e-6


# ---- sparse rows: the diagonal of C ----------------------------------------------------------------


def tiled(monkeypatch, **settings):
    """Sparse rows of which no triangular factor is made."""
    monkeypatch.setattr("valuefit.precondition.preconditioner.MAX_DENSE_PASSES", 0.0)
    rng = np.random.default_rng(0)
    rows = sparse.random_array((2001, 80), density=0.08, rng=rng, format="csr")
    return chain(rows, rng.standard_normal(2000), **settings)


@pytest.mark.parametrize("settings", [{}, {"ridge": 1e-3}, {"trace": 0.6}, {"metric": "identity", "ridge": 1e-3}])
def test_sparse_rows_without_a_factor(monkeypatch, settings):
    problem = tiled(monkeypatch, **settings)
    result = vf.solve(problem, "krylov", tol=1e-6)
    assert result.status == "converged", result.message
    assert "directly" not in result.message
    assert Exact(problem).gap(result.theta) <= 1e-6


def test_the_oldest_directions_are_dropped(monkeypatch):
    problem = tiled(monkeypatch)
    assert len(states(problem, 8, Krylov(depth=3))[-1].memory.basis) == 3
    assert vf.solve(problem, Krylov(depth=3), tol=1e-6).status == "converged"
    with pytest.raises(ValueError, match="depth is 0; it must be at least 1"):
        Krylov(depth=0)


@pytest.mark.parametrize("given", [int, len, lambda problem: problem, lambda problem: None])
def test_functions_that_make_no_preconditioner_are_refused(given):
    problem = problem_of(naive.random_log(np.random.default_rng(0), n=40, d=4))
    with pytest.raises(ValueError, match=r"preconditioner (could not be called with|returned) .*"):
        vf.solve(problem, Krylov(preconditioner=given))
