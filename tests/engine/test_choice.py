"""The solver that "auto" selects, its message and fallbacks."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from helpers.problems import Oracle
from valuefit import memory
from valuefit.datasets.mdp import random_mdp
from valuefit.engine import choice
from valuefit.engine.choice import rank
from valuefit.problem.cost import Cost
from valuefit.threads import limit_threads


def wide(n=3000, d=400, *, storage=np.asarray, **settings):
    rng = np.random.default_rng(0)
    rows = storage(rng.standard_normal((n + 1, d)))
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), rng.standard_normal(n), 0.9, **settings)


def on_policy(steps=600):
    mdp = random_mdp(states=40, features=12, seed=3)
    return vf.Problem(mdp.log(steps, seed=5), mdp.rows, discount=0.9)


# ---- auto -------------------------------------------------------------------------------------------------------


def test_few_features_or_few_distinct_rows_are_solved_directly():
    assert rank(Oracle(0).problem(), 1e-6)[0][0] == "lstd"
    mdp = random_mdp(states=400, features=200, seed=0)
    assert rank(vf.Problem(mdp.log(20_000, seed=0), mdp.rows, discount=0.95), 1e-6)[0][0] == "lstd"


def test_many_sparse_features_are_not_solved_directly():
    n, d = 4000, 20_000
    rng = np.random.default_rng(0)
    rows = sparse.random_array((n + 1, d), density=8 / d, rng=rng, format="csr")
    problem = vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), rng.standard_normal(n), 0.9)
    names, reason = rank(problem, 1e-6)
    assert names[0] != "lstd"
    assert reason.startswith(f"'auto' chose {names[0]}: it should take ")


def test_many_dense_features_are_expensive_for_methods_of_single_rows():
    problem = wide(20_000, 1000)
    svrg, lstd = (solver().cost(problem, 1e-6).seconds for solver in (vf.solvers.SVRG, vf.solvers.LSTD))
    assert svrg > 2 * lstd  # 1.4 times with five times as many steps, in benchmarks/results.md


@pytest.mark.parametrize(
    ("steps", "columns", "tilings", "gap", "measured"),
    [(1_000_000, 97_336, 8, 1e-6, 14), (1_000_000, 1_000_000, 16, 0.014, 54), (100_000, 9_800, 8, 1e-6, 0.5)],
)
def test_estimates_for_tiles_are_within_a_factor_of_two(steps, columns, tilings, gap, measured):
    # seconds of krylov on two cores: benchmarks/why.md and, divided by 1.2 for the second thread, results.json
    cost = Cost.of_parts(steps, columns, steps * tilings, sparse=True, traced=False, square=True)
    problem = SimpleNamespace(cost=cost, n=steps, d=columns, k=columns, sparse=True)
    with limit_threads(2):
        seconds = vf.solvers.Krylov().cost(problem, gap).seconds
    assert measured / 2 < seconds < 2 * measured


def test_the_choice_is_reproducible():
    first, second = rank(wide(), 1e-6), rank(wide(), 1e-6)
    assert first == second
    assert rank(wide(), 1e-6, memory=1)[0] == ["lstd"]  # nothing fits: the one that needs the least


def test_moments_that_standard_errors_need_cost_the_solver_nothing():
    problem = wide(20_000, 1000)
    assert rank(problem, 1e-6)[0][0] == "krylov"
    names, reason = rank(problem, 1e-6, moments_needed=True)
    assert names[0] == "lstd"
    sentence = "are formed for standard errors anyway."
    assert sentence in reason
    log = random_mdp(states=40, features=12, seed=3).log(600, seed=5)
    assert sentence in vf.evaluate(log, discount=0.9).result.message
    assert sentence not in vf.solve(problem, "auto", max_passes=1).message


def test_solvers_that_do_not_fit_into_memory_are_left_out(monkeypatch):
    for module in (choice, memory):
        monkeypatch.setattr(module, "memory_limit", lambda: 8 * 400 * 400)
    names, reason = rank(wide(), 1e-6)
    assert "lstd" not in names
    assert "svrg" in names
    assert "lstd and krylov would not fit into memory" in reason


def test_the_result_says_what_was_chosen_and_why():
    result = vf.solve(Oracle(1).problem(), "auto", tol=1e-10)
    assert result.solver == "lstd"
    assert result.status == "converged"
    assert "'auto' chose lstd: it should take" in result.message
    with pytest.raises(TypeError, match="'auto' only selects a solver: pass it to solve"):
        vf.solvers.Auto().init(Oracle(1).problem(), np.zeros(7), np.zeros(7))


def test_the_next_solver_runs_when_one_does_not_fit_into_memory(monkeypatch):
    def out_of_memory(self, problem, state, rng):
        raise MemoryError("no memory for the moments")

    monkeypatch.setattr(vf.solvers.LSTD, "epoch", out_of_memory)
    result = vf.solve(Oracle(1).problem(), "auto", tol=1e-10)
    assert result.solver != "lstd"
    assert result.status == "converged"
    assert "lstd did not fit into memory (no memory for the moments)" in result.message


def test_the_next_solver_runs_when_one_fails(monkeypatch):
    from valuefit.solvers.solver import Info, State

    monkeypatch.setattr(
        vf.solvers.LSTD,
        "epoch",
        lambda self, problem, state, rng: (State(state.theta, state.w), Info(1.0, finished=True)),
    )
    result = vf.solve(Oracle(1).problem(), "auto", tol=1e-10)
    assert "lstd ended as singular, so the next was taken" in result.message
    assert result.status == "converged"


def test_where_moments_are_nearly_singular_fewer_features_are_the_advice(monkeypatch):
    from valuefit.solvers.solver import Info, State

    problem = Oracle(1).problem()
    with monkeypatch.context() as patched:
        patched.setattr(
            vf.solvers.LSTD,
            "epoch",
            lambda self, problem, state, rng: (State(state.theta, state.w), Info(1.0, finished=True)),
        )
        message = vf.solve(problem, "lstd", tol=1e-10).message
    assert message.endswith("Use fewer features, or drop those that depend on others.")


@pytest.mark.parametrize("tol", ["statistics", -1.0, np.nan, None])
def test_other_tolerances_are_refused(tol):
    with pytest.raises(ValueError, match='0 or more, or "statistical"'):
        vf.solve(on_policy(), "lstd", tol=tol)
