"""Tile coding with many features: krylov with a sparse C, the gap that it reports, and what it does without memory."""

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from helpers.problems import hard
from valuefit.datasets.ar1 import ar1_log
from valuefit.engine import certificate
from valuefit.engine.certificate import Certificate
from valuefit.features import Tiles
from valuefit.precondition import preconditioner as module
from valuefit.precondition.preconditioner import Diagonal, GaussSeidelSweeps, SparseCholesky
from valuefit.problem.cost import Cost
from valuefit.problem.exact import Exact
from valuefit.solvers.krylov import Krylov

KINDS = {
    "plain": {},
    "hashed": {"hashed": 150},
    "ratio": {"ratio": True},
    "trace": {"trace": 0.6},
    "ridge": {"ridge": 1e-4},
    "large ridge": {"ridge": 0.5},
    "identity": {"metric": "identity"},
}


def tiled(n=1500, bins=6, *, hashed=None, ratio=False, **settings):
    """Four tilings of a slow process in two dimensions; C has a rank below its columns."""
    log = ar1_log(n, dimensions=2, memory=0.9, seed=0)
    rows = Tiles(4, bins, low=-3.0, high=3.0, hashed=hashed).fit_transform(log.observations)
    ratios = np.random.default_rng(1).lognormal(0, 0.4, n) if ratio else None
    reward = np.sin(log.observations[log.now, 0]) + np.random.default_rng(2).standard_normal(n)
    return vf.Problem.from_rows(rows, log.now, log.next, reward, 0.95, ratios, **settings)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """No dense moments and factors: these small problems stand for wide ones."""
    monkeypatch.setattr(Cost, "affords_factor", lambda *sizes, **limits: False)
    monkeypatch.setattr(certificate, "FREE_PASSES", -1.0)


@pytest.mark.parametrize("way", ["factor", "sweeps"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gap_is_reached_and_reported_truly(monkeypatch, way, kind):
    if way == "sweeps":
        monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    problem = tiled(**KINDS[kind])
    exact = Exact(problem)
    assert kind == "identity" or len(problem.C_spectrum[0]) < problem.d - len(problem.dead)
    result = vf.solve(problem, "krylov", tol=1e-6, max_passes=5000)
    assert result.status == "converged", result.message
    assert "directly" not in result.message
    assert exact.gap(result.theta) <= 1e-6
    assert result.gap >= 0.9 * exact.gap(result.theta)


def test_how_C_is_used(monkeypatch):
    problem = tiled()

    def made(problem):
        state, _ = Krylov().init(problem, np.zeros(problem.d), np.zeros(problem.k))
        return type(state.memory.equations.preconditioner)

    assert made(problem) == made(tiled(ridge=0.1)) == SparseCholesky
    monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    assert made(problem) == made(tiled(ridge=0.1)) == GaussSeidelSweeps
    monkeypatch.setattr(module, "memory_limit", lambda: 1000)
    assert made(problem) == made(tiled(ridge=0.1)) == Diagonal


def test_a_factor_takes_fewer_iterations_than_a_diagonal(monkeypatch):
    problem = tiled(4000, 16)
    counts = []
    for limit in (1 << 34, 1000):
        monkeypatch.setattr(module, "memory_limit", lambda limit=limit: limit)
        counts.append(len(vf.solve(problem, "krylov", tol=1e-6, max_passes=5000).history))
    assert 2 * counts[0] < counts[1]


def test_without_memory_for_a_sparse_C_the_diagonal_converges(monkeypatch):
    monkeypatch.setattr(module, "memory_limit", lambda: 1000)
    problem = tiled()
    result = vf.solve(problem, "krylov", tol=1e-4, max_passes=5000)
    assert Exact(problem).gap(result.theta) <= 1e-3


def test_passes_count_the_factor_and_the_sweeps(monkeypatch):
    problem = tiled()
    start = np.zeros(problem.d), np.zeros(problem.k)
    state, info = Krylov().init(problem, *start)
    moment = module.sparse_moment(problem, limit=np.inf, ridge=0.0)
    assert info.passes >= 1 + problem.cost.C + problem.cost.flops(moment.plan.flops)
    found = state.memory.equations.preconditioner
    assert found.apply_passes >= problem.cost.reads(2 * (found.factor.size + found.matrix.rare.size))
    monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    state, info = Krylov().init(problem, *start)
    found = state.memory.equations.preconditioner
    assert info.passes > 1 + problem.cost.C
    assert found.apply_passes >= problem.cost.reads(found.inner * found.matrix.inside.nnz)


@pytest.mark.parametrize("limit", [module.MAX_SPARSE_PASSES, 0.0], ids=["factor", "sweeps"])
def test_the_certificate_with_a_sparse_C_is_close_to_the_truth(monkeypatch, limit):
    monkeypatch.setattr(module, "MAX_SPARSE_PASSES", limit)
    problem = tiled()
    exact, evidence = Exact(problem), Certificate(problem, np.zeros(problem.d))
    noise = np.random.default_rng(0).standard_normal(problem.d)
    for size in (1e-1, 1e-2, 1e-3):
        theta = exact.theta + size * noise
        bound = evidence.gap(theta, np.zeros(problem.k), tol=10 * exact.gap(theta), allowance=1000)
        assert 0.9 * exact.gap(theta) <= bound <= 2 * exact.gap(theta)


@pytest.mark.parametrize("limit", [module.MAX_SPARSE_PASSES, 0.0], ids=["factor", "sweeps"])
def test_nearly_equal_features_get_no_false_certificate(monkeypatch, limit):
    monkeypatch.setattr(module, "MAX_SPARSE_PASSES", limit)
    problem = hard("nearly equal sparse pairs")
    exact, evidence = Exact(problem), Certificate(problem, np.zeros(problem.d))
    for passes in (20, 60):
        theta = vf.solve(problem, "saga", tol=0, max_passes=passes).theta
        bound = evidence.gap(theta, np.zeros(problem.k), tol=1e-2, allowance=1000)
        assert bound is None or bound >= 0.1 * exact.gap(theta)


@pytest.mark.parametrize("tol", [0.05, 1e-3, 1e-5])
def test_with_sweeps_a_gap_near_what_was_asked_for_is_decided_truly(monkeypatch, tol):
    """The certificate ends as soon as its bounds say enough; neither side of the gap asked for is confused."""
    monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    problem = tiled(hashed=150)
    exact, noise = Exact(problem), np.random.default_rng(0).standard_normal(problem.d)
    size = np.sqrt(tol / exact.gap(exact.theta + noise))
    for part in (0.05, 0.5, 0.9, 1.1, 2.0, 20.0):
        theta = exact.theta + np.sqrt(part) * size * noise
        true = exact.gap(theta)
        bound = Certificate(problem, np.zeros(problem.d)).gap(theta, np.zeros(problem.k), tol=tol, allowance=1000)
        assert bound >= 0.999 * true
        assert (bound <= tol) == (part < 1)


def test_a_certificate_with_sweeps_takes_fewer_passes_where_less_is_asked_for(monkeypatch):
    monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    problem = tiled(hashed=150)
    exact = Exact(problem)
    theta = exact.theta + 1e-3 * np.random.default_rng(0).standard_normal(problem.d)
    true, passes = exact.gap(theta), []
    evidence = Certificate(problem, np.zeros(problem.d))
    for tol in (true, 1e3 * true, 1.05 * true, 1e-3 * true):  # the first also pays for what is computed once
        before = evidence.passes
        bound = evidence.gap(theta, np.zeros(problem.k), tol=tol, allowance=1000)
        assert (bound <= tol) == (tol > true)
        passes.append(evidence.passes - before)
    assert passes[1] < passes[2] > passes[3]


def test_a_preconditioner_that_returns_nan_is_not_convergence(monkeypatch):
    problem = tiled()

    def broken(problem):
        found = module.precondition(problem)
        monkeypatch.setattr(type(found), "dual", lambda self, r: np.full(len(r), np.nan))
        return found

    result = vf.solve(problem, Krylov(preconditioner=broken), tol=1e-6, max_passes=50)
    assert result.status != "converged" or Exact(problem).gap(result.theta) <= 1e-6


def test_a_rank_in_doubt_has_no_known_excess():
    rng = np.random.default_rng(0)
    one = sparse.random_array((1001, 40), density=0.05, rng=rng, format="csr")
    other = one + 2e-6 * sparse.random_array((1001, 40), density=0.05, rng=rng, format="csr")
    rows = sparse.hstack([one, other]).tocsr()
    problem = vf.Problem.from_rows(rows, np.arange(1000), np.arange(1, 1001), rng.standard_normal(1000), 0.9)
    moment = module.sparse_moment(problem, limit=np.inf, ridge=0.0)
    found = module.sparse_preconditioner(problem, moment, ridge=0.0)
    assert not found.clear
    assert found.excess == np.inf
