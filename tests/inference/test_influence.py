"""Standard errors: against finite differences, and coverage of the fixed point (the estimate from infinite data)."""

import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sparse

import naive
import valuefit as vf
from helpers.errors import errors_of, moved
from helpers.problems import chain, problem_of
from helpers.small_log import VARIANTS, small_log
from helpers.small_mdp import SmallMDP
from valuefit.inference import adjoints as module
from valuefit.inference import saddle_iterations, shard_errors
from valuefit.inference.adjoints import AdjointMethod, AdjointSolver, Equations
from valuefit.inference.error_estimate import ErrorEstimate, LinearFunction, effective_count
from valuefit.inference.errors import Errors
from valuefit.inference.influence import Influences
from valuefit.inference.shards import Shard
from valuefit.linalg import scaled_lu


@pytest.mark.parametrize("unit", [1e-320, 1e-200, 1.0, 1e200])
def test_effective_clusters_do_not_depend_on_the_unit(unit):
    expected = np.array([3.0, 1.0, 1.0, 0.0]) * unit
    assert effective_count(expected) == pytest.approx(25 / 11, rel=1e-3)
    assert effective_count(np.zeros(4)) == 4


def weighted_theta(log, weights):
    """The minimiser with step t weighted by weights[t]."""
    k, d = log.Psi.shape[1], log.Phi.shape[1]
    A, b, C = np.zeros((k, d)), np.zeros(k), np.zeros((k, k))
    for weight, step in zip(weights, naive.steps(log), strict=True):
        A_t, b_t, C_t = naive.matrices(log, step)
        A, b, C = A + weight * A_t, b + weight * b_t, C + weight * C_t
    A, b, C = A / weights.sum(), b / weights.sum(), C / weights.sum()
    inverse = np.linalg.inv(C)
    H = A.T @ inverse @ A + log.ridge * np.eye(d)
    return np.linalg.solve(H, A.T @ inverse @ b)


def error_by_differences(log, c, cluster):
    """The clustered standard error by central differences of c'theta in the weight of each cluster."""
    sums = []
    for label in np.unique(cluster):
        step = 1e-5 * (cluster == label)
        ends = weighted_theta(log, 1 + step), weighted_theta(log, 1 - step)
        sums.append((ends[0] - ends[1]) @ c / 2e-5)
    count = len(sums)
    return np.sqrt(count / (count - 1) * np.sum(np.square(sums)))


def force_method(method, monkeypatch):
    """Make new solvers solve the adjoint system by this method."""
    if method is AdjointMethod.PSEUDO_INVERSE:
        monkeypatch.setattr(scaled_lu, "MIN_RECIPROCAL_CONDITION", 2.0)
    elif method is AdjointMethod.ITERATIVE:
        monkeypatch.setattr(module, "ALWAYS_DIRECT_FEATURES", 0)
        monkeypatch.setattr(module, "MAX_DIRECT_PASSES", 0)


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
def test_errors_are_those_of_finite_differences(variant, storage):
    log, c = small_log(**variant), np.array([1.0, -0.5, 0.3])
    problem = problem_of(log, storage)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, log.episode, "cr1")
    found = errors.error(LinearFunction(c))
    assert found.standard_error == pytest.approx(error_by_differences(log, c, log.episode), rel=1e-6)
    assert 1 <= found.effective_clusters <= 9
    assert found.degrees_of_freedom == found.effective_clusters - 1


RIDGES = [variant for variant in VARIANTS if "ridge" in variant and "identity" not in variant]


@pytest.mark.parametrize("variant", RIDGES, ids="+".join)
@pytest.mark.parametrize("method", list(AdjointMethod))
def test_errors_with_a_ridge_are_those_of_finite_differences_by_every_method(variant, method, monkeypatch):
    log, c = small_log(**variant), np.array([1.0, -0.5, 0.3])
    force_method(method, monkeypatch)
    theta = weighted_theta(log, np.ones(len(log.now)))
    errors = errors_of(problem_of(log), theta, log.episode, "cr1")
    found = errors.error(LinearFunction(c))
    assert errors.equations.solver.method is method
    tol = 1e-6 if method is not AdjointMethod.ITERATIVE else 1e-3
    assert found.standard_error == pytest.approx(error_by_differences(log, c, log.episode), rel=tol)
    assert found.solver_error < 1e-6
    away = moved(errors, theta + 0.1)
    assert away.error(LinearFunction(c)).solver_error == pytest.approx(0.1 * c.sum(), rel=tol)
    if method is not AdjointMethod.ITERATIVE:
        np.testing.assert_allclose(away.equations.to_minimiser, -0.1, rtol=1e-6)


def test_td_errors_are_those_of_the_weights():
    log = small_log()
    problem, theta = problem_of(log), np.arange(1.0, log.Phi.shape[1] + 1)
    shard = Shard.of_log(problem, log.episode)
    zero, at_theta = (Influences(Equations.of(problem, x), shard) for x in (np.zeros(problem.d), theta))
    np.testing.assert_array_equal(zero.td_errors, problem.reward)
    value = log.Phi @ theta
    expected = problem.reward - value[problem.now] + problem.discount * value[problem.next]
    np.testing.assert_allclose(at_theta.td_errors, expected)


def test_a_function_whose_norm_underflows_has_its_error_without_a_warning():
    log = small_log()
    problem, c = problem_of(log), np.eye(log.Phi.shape[1])[0]
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, log.episode, "cr1")
    expected = errors.error(LinearFunction(c)).standard_error
    assert np.linalg.norm(1e-170 * c) == 0
    with np.errstate(divide="raise", invalid="raise"):
        found = errors.error(LinearFunction(1e-170 * c))
    assert found.standard_error == pytest.approx(1e-170 * expected)


# ---- instrumental variables ---------------------------------------------------------------------------------


def two_stage_least_squares(log, *, debiased):
    """The fit by linearmodels: rewards on the v_t = phi_t - discount_t phi'_t, with the u_t as instruments."""
    from linearmodels.iv import IV2SLS

    u, v, _, reward = (np.array(part) for part in zip(*naive.steps(log), strict=True))
    return IV2SLS(reward, None, v, u).fit(cov_type="clustered", clusters=log.episode, debiased=debiased)


@pytest.mark.parametrize("variant", [{}, {"trace": 0.7}, {"off_policy": True}, {"off_policy": True, "trace": 0.5}])
def test_lstd_is_the_instrumental_variables_estimator(variant):
    """Theta and its covariance agree but for the small-sample factors.

    Ours is G / (G - 1). linearmodels has none without `debiased`, and G / (G - 1) (n - 1) / (n - d) with it.
    """
    log = small_log(**variant)
    problem = problem_of(log)
    theta = vf.solve(problem, "lstd").theta
    errors = errors_of(problem, theta, log.episode, "cr1")
    changes = errors.whole.changes
    episodes, n, d = errors.shards.clusters, problem.n, problem.d
    for debiased, factor in ((False, (episodes - 1) / episodes), (True, (n - 1) / (n - d))):
        expected = two_stage_least_squares(log, debiased=debiased)
        np.testing.assert_allclose(theta, expected.params, rtol=1e-8)
        np.testing.assert_allclose(factor * changes.T @ changes, expected.cov, rtol=1e-8)
        for c, error in zip(np.eye(d), expected.std_errors, strict=True):
            found = errors.error(LinearFunction(c)).standard_error
            assert np.sqrt(factor) * found == pytest.approx(error, rel=1e-8)


def test_more_dual_features_than_features_are_overidentifying_instruments():
    """Weights agree, errors do not: linearmodels leaves out that the first stage was estimated too (w is not 0)."""
    log = small_log(dual=True)
    problem = problem_of(log)
    theta = vf.solve(problem, "lstd").theta
    expected = two_stage_least_squares(log, debiased=False)
    np.testing.assert_allclose(theta, expected.params, rtol=1e-8)
    factor = np.sqrt(8 / 9)
    found = [errors_of(problem, theta, log.episode, "cr1").error(LinearFunction(c)).standard_error for c in np.eye(3)]
    assert not np.allclose(factor * np.array(found), expected.std_errors, rtol=1e-3)


def test_iterative_adjoints_start_from_combinations_of_known_ones(monkeypatch):
    force_method(AdjointMethod.ITERATIVE, monkeypatch)
    log, products = small_log(trace=0.7), []
    problem = problem_of(log)
    product = problem.At_dot
    monkeypatch.setattr(problem, "At_dot", lambda w: products.append(0) or product(w))
    theta, known, c = np.zeros(3), np.array([[1.0, -0.5, 0.3], [0.2, 1.0, 0.1]]), np.array([1.8, -2.0, 0.5])
    sizes, counts = [], []
    np.testing.assert_allclose(2 * known[0] - known[1], c)
    for vectors in ([], known):
        errors = errors_of(problem, theta, log.episode, "cr1")
        for one in vectors:
            errors.error(LinearFunction(one))
        products.clear()
        sizes.append(errors.error(LinearFunction(c)).standard_error)
        counts.append(len(products))
    assert counts[1] < counts[0]
    assert sizes[1] == pytest.approx(sizes[0], rel=1e-3)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
@pytest.mark.parametrize("method", [AdjointMethod.PSEUDO_INVERSE, AdjointMethod.ITERATIVE])
def test_all_adjoint_methods_agree(variant, method, monkeypatch):
    log, c = small_log(**variant), np.array([1.0, -0.5, 0.3])
    problem = problem_of(log)
    theta = vf.solve(problem, "lstd").theta
    expected = errors_of(problem, theta, log.episode, "cr1")
    assert expected.equations.solver.method is AdjointMethod.LU
    force_method(method, monkeypatch)
    fresh = problem_of(log)
    found = errors_of(fresh, theta, log.episode, "cr1")
    assert found.error(LinearFunction(c)).standard_error == pytest.approx(
        expected.error(LinearFunction(c)).standard_error, rel=1e-3
    )
    assert found.equations.solver.method is method


@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_dependent_features_change_nothing_where_the_value_is_determined(ridge):
    log = small_log(trace=0.3, ridge=ridge, off_policy=True)
    c = np.array([1.0, -0.5, 0.3])
    plain = problem_of(log)
    expected = errors_of(plain, vf.solve(plain, "lstd").theta, log.episode, "cr1").error(LinearFunction(c))
    # an orthogonal rotation into a larger space preserves norms, so the ridge penalty is the same
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0][:3]
    wide = problem_of(log._replace(Phi=log.Phi @ rotation, Psi=log.Phi @ rotation))
    errors = errors_of(wide, vf.solve(wide, "lstd").theta, log.episode, "cr1")
    found = errors.error(LinearFunction(c @ rotation))
    assert errors.equations.solver.method is AdjointMethod.PSEUDO_INVERSE
    assert found.determined
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-8)
    outside = np.random.default_rng(4).normal(size=6)
    assert errors.error(LinearFunction(outside)).determined == (ridge > 0)
    if ridge == 0:
        assert errors.error(LinearFunction(outside)).standard_error is None


def test_a_feature_without_data_makes_the_value_undetermined():
    log = small_log()
    wide = log._replace(Phi=np.column_stack([log.Phi, np.zeros(len(log.Phi))]))
    problem = problem_of(wide._replace(Psi=wide.Phi))
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, log.episode, "cr1")
    assert not errors.error(LinearFunction(np.array([1.0, 0, 0, 1]))).determined
    assert errors.error(LinearFunction(np.array([1.0, 0, 0, 0]))).determined
    assert errors.equations.solver.determines(np.array([[1.0, 0, 0, 1], [1.0, 0, 0, 0]])).tolist() == [False, True]


def test_many_sparse_features_form_no_moments():
    rng = np.random.default_rng(0)
    n, d = 20_000, 2_000
    rows = sparse.csr_array((np.ones(2 * (n + 1)), rng.integers(0, d, 2 * (n + 1)), np.arange(0, 2 * n + 3, 2)),
                            shape=(n + 1, d))  # fmt: skip
    episode = np.arange(n) // 50
    now = np.arange(n)
    next = np.where(now % 50 == 49, -1, now + 1)
    problem = vf.Problem.from_rows(rows, now, next, rng.normal(size=n), 0.9, None, episode)
    c = rows[:1].toarray()[0]
    exact = vf.Problem.from_rows(rows, now, next, problem.reward, 0.9, None, episode)
    theta = vf.solve(exact, "lstd").theta
    errors = errors_of(problem, theta, episode, "cr1")
    found = errors.error(LinearFunction(c))
    assert errors.equations.solver.method is AdjointMethod.ITERATIVE
    assert "A" not in vars(problem)
    assert "C" not in vars(problem)
    assert found.standard_error == pytest.approx(
        errors_of(exact, theta, episode, "cr1").error(LinearFunction(c)).standard_error, rel=1e-3
    )


def test_many_dense_features_of_a_bad_condition_have_a_standard_error():
    # beyond ALWAYS_DIRECT_FEATURES, where GMRES over the log would not converge
    n, d = 3200, module.ALWAYS_DIRECT_FEATURES + 50
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n + 1, d)) * np.geomspace(1, 1e-2, d)
    rows[:, 1:] += rows[:, :1]  # nearly the same column
    problem = chain(rows, rng.standard_normal(n))
    c = rows[:50].mean(axis=0)
    errors = errors_of(problem, np.linalg.solve(problem.A, problem.b), np.arange(n) // 40, "cr1")
    assert errors.equations.solver.method is AdjointMethod.LU
    error = errors.error(LinearFunction(c))
    v = rows[:-1] - 0.9 * rows[1:]
    influence = (rows[:-1] @ np.linalg.solve(v.T @ rows[:-1], c)) * (problem.reward - v @ errors.equations.theta)
    expected = np.linalg.norm(np.add.reduceat(influence, np.arange(0, n, 40))) * np.sqrt(80 / 79)
    assert error.standard_error == pytest.approx(expected, rel=1e-4)


def test_an_adjoint_that_does_not_converge_gives_no_standard_error(monkeypatch):
    log = small_log(ridge=1e-6, dual=True)
    force_method(AdjointMethod.ITERATIVE, monkeypatch)
    for one in (module, saddle_iterations):
        monkeypatch.setattr(one, "MAX_ITERATIONS", 2)
    problem = problem_of(log)
    found = errors_of(problem, naive.minimiser(log)[0], log.episode, "cr1").error(LinearFunction(np.ones(3)))
    assert found.standard_error is None
    assert "did not converge in 2 passes" in found.reason


# ---- coverage ----------------------------------------------------------------------------------------------


class Undiscounted(Influences):
    """A deliberate error: TD errors without the discount."""

    def of_steps(self, adjoints):
        self.problem.discount = np.where(self.problem.discount > 0, 1.0, 0.0)
        return super().of_steps(adjoints)


def coverage(mdp, *, logs, episodes=60, trace=0.0, ridge=0.0, fault="", fixed_starts=False):
    """The share of logs whose 95% interval contains the mean start value at the fixed point."""
    truth = mdp.start @ mdp.features @ mdp.fixed_point(trace, ridge)
    inside = 0
    for seed in range(logs):
        log = mdp.log(episodes, seed=seed + 1)
        problem = vf.Problem(log, mdp.rows, discount=mdp.discount, trace=trace, ridge=ridge)
        theta = vf.solve(problem, "lstd").theta
        first = np.flatnonzero(np.diff(log.episode, prepend=-1))
        rows = mdp.rows(log.observations[log.now[first]])
        c = mdp.start @ mdp.features if fixed_starts else rows.mean(axis=0)
        cluster = np.arange(len(log)) if fault == "steps as clusters" else log.episode
        known = fixed_starts or fault == "starts known"
        function = LinearFunction(c) if known else LinearFunction(c, rows, first)
        with patch.object(shard_errors, "Influences", Undiscounted if fault == "no discount" else Influences):
            found = errors_of(problem, theta, cluster, "cr1").error(function)
        low, high = found.interval(c @ theta, 0.95)
        inside += low <= truth <= high
    return inside / logs


CASES = {
    "on-policy": ({}, {}),
    "ratios": ({"off_policy": True}, {}),
    "trace": ({}, {"trace": 0.7}),
    "ridge": ({}, {"ridge": 0.5}),
    "all": ({"off_policy": True}, {"trace": 0.5, "ridge": 0.2}),
    "given starts": ({}, {"fixed_starts": True}),
    "dependent steps": ({"episode_noise": 1.0}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_intervals_cover_the_fixed_point(case):
    world, settings = CASES[case]
    covered = coverage(SmallMDP(**world), logs=300, **settings)
    # the binomial standard error of 300 logs is 1.3%: three of these, and one for the bias of 60 episodes
    assert 0.90 <= covered <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_intervals_cover_the_fixed_point_over_many_logs(case):
    world, settings = CASES[case]
    covered = coverage(SmallMDP(**world), logs=4000, episodes=200, **settings)
    assert 0.937 <= covered <= 0.963


@pytest.mark.parametrize("fault", ["steps as clusters", "starts known", "no discount"])
def test_a_deliberate_error_breaks_coverage(fault):
    mdp = {
        "steps as clusters": SmallMDP(episode_noise=1.0),
        "no discount": SmallMDP(episode_noise=1.0, gain=5.0),
        "starts known": SmallMDP(discount=0.2),  # most of the variance comes from the starts
    }[fault]
    assert 0.90 <= coverage(mdp, logs=200) <= 0.99
    broken = coverage(mdp, logs=200, fault=fault)
    assert not 0.88 <= broken <= 0.995


# ---- one episode -------------------------------------------------------------------------------------------


def test_a_single_episode_is_cut_into_blocks():
    log = small_log()
    problem = problem_of(log._replace(episode=np.zeros(len(log.now), int)))
    theta = vf.solve(problem, "lstd").theta
    errors = errors_of(problem, theta, np.zeros(problem.n), "cr1")
    clusters = errors.whole.clusters
    assert clusters.blocks
    assert clusters.count == int(np.sqrt(problem.n))
    sizes = np.bincount(clusters.of_step)
    assert sizes.max() - sizes.min() <= 1
    found = errors.error(LinearFunction(np.ones(3)))
    expected = error_by_differences(log, np.ones(3), clusters.of_step)
    assert found.standard_error == pytest.approx(expected, rel=1e-6)


def test_blocks_cover_the_fixed_point_of_an_unending_episode():
    from valuefit.datasets.mdp import random_mdp

    mdp = random_mdp(20, 3, 5)
    A, b, _ = mdp.moments(0.9)
    truth, c = np.linalg.solve(A, b), mdp.features.mean(axis=0)
    inside = 0
    for seed in range(200):
        problem = vf.Problem(mdp.log(2000, seed=seed), mdp.rows, discount=0.9)
        theta = vf.solve(problem, "lstd").theta
        low, high = errors_of(problem, theta, np.zeros(2000), "cr1").error(LinearFunction(c)).interval(c @ theta, 0.95)
        inside += low <= c @ truth <= high
    assert 0.89 <= inside / 200 <= 0.99


@pytest.mark.parametrize("steps", [1, 2, 24])
def test_a_single_short_episode_has_no_standard_error(steps):
    problem = vf.Problem.from_rows(np.ones((steps, 1)), np.arange(steps), np.full(steps, -1), np.ones(steps), 0.9)
    found = errors_of(problem, np.ones(1), np.zeros(steps), "cr1").error(LinearFunction(np.ones(1)))
    assert found.standard_error is None
    assert found.interval(1.0, 0.95) is None
    assert f"One episode of {steps} steps is too short" in found.reason


# ---- solver error -------------------------------------------------------------------------------------------


def constructed_and_moved(problem, theta, episode):
    """The errors at theta, constructed there, and constructed at 0 and moved there."""
    zero = errors_of(problem, np.zeros_like(theta), episode, "cr1")
    return errors_of(problem, theta, episode, "cr1"), moved(zero, theta)


@pytest.mark.parametrize("method", AdjointMethod)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
def test_the_solver_error_is_the_distance_to_the_minimiser(variant, method, monkeypatch):
    log = small_log(**variant)
    best, c = naive.minimiser(log)[0], np.array([1.0, -0.5, 0.3])
    force_method(method, monkeypatch)
    for size in (1e-6, 0.1, 10.0):
        theta = best + size * np.array([0.3, 0.2, -1.0])
        expected = abs(c @ (theta - best))
        for errors in constructed_and_moved(problem_of(log), theta, log.episode):
            found = errors.error(LinearFunction(c))
            tol = 1e-3 if method is AdjointMethod.ITERATIVE else 1e-7
            assert found.solver_error == pytest.approx(expected, rel=tol)
            assert found.relative_solver_error == pytest.approx(10 * found.solver_error / found.standard_error)
            assert errors.error(LinearFunction(np.zeros(3))).solver_error == 0


@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_the_solver_error_of_dependent_features_is_that_of_the_determined_part(ridge):
    log = small_log(trace=0.3, ridge=ridge, off_policy=True)
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0][:3]
    wide = problem_of(log._replace(Phi=log.Phi @ rotation, Psi=log.Phi @ rotation))
    best = vf.solve(wide, "lstd").theta
    off = np.random.default_rng(4).normal(size=6)
    c = np.array([1.0, -0.5, 0.3]) @ rotation
    for errors in constructed_and_moved(wide, best + off, log.episode):
        assert errors.equations.solver.method is AdjointMethod.PSEUDO_INVERSE
        assert errors.error(LinearFunction(c)).solver_error == pytest.approx(abs(c @ off), rel=1e-7)
        assert errors.error(LinearFunction(off)).solver_error == (pytest.approx(off @ off) if ridge else None)


def test_other_weights_need_no_second_adjoint(monkeypatch):
    log = small_log(ridge=0.1)
    problem = problem_of(log)
    errors, c = errors_of(problem, np.zeros(3), log.episode, "cr1"), np.ones(3)
    errors.error(LinearFunction(c))
    monkeypatch.setattr(AdjointSolver, "_solve_adjoint", None)
    there, function = moved(errors, naive.minimiser(log)[0]), LinearFunction(c)
    assert there.error(function).solver_error < 1e-12 < errors.error(function).solver_error


def test_the_interval_is_wider_by_the_solver_error():
    converged, stopped = ErrorEstimate(2.0, 8), ErrorEstimate(2.0, 8, solver_error=0.5)
    low, high = converged.interval(1.0, 0.95)
    assert stopped.interval(1.0, 0.95) == (low - 0.5, high + 0.5)
    assert stopped.relative_solver_error == 2.5
    assert converged.relative_solver_error == 0
    assert ErrorEstimate(0.0, 8, solver_error=0.1).relative_solver_error == np.inf
    assert ErrorEstimate(None, 8, solver_error=0.1).relative_solver_error == 0


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_the_interval_uses_the_quantiles_of_students_t(level):
    from scipy.stats import t as student

    for degrees in (1, 2, 3, 5, 10, 30, 100, 999, 10_000, 1_000_000):
        low, high = ErrorEstimate(1.0, degrees + 1).interval(0.0, level)
        quantile = student.ppf(0.5 + level / 2, degrees)
        assert [low, high] == pytest.approx([-quantile, quantile], rel=1e-12)


def test_standard_errors_do_not_import_scipy_stats():
    code = "import sys, valuefit.inference.errors; assert 'scipy.stats' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class OneEquation(Equations):
    """A deliberate error: the residual of the first saddle equation is ignored."""

    @property
    def residual(self):
        above, below = self.problem.B(self.theta, self.w)
        return np.zeros_like(above), below


def test_a_deliberate_error_makes_the_solver_error_wrong():
    log = small_log(ridge=0.3)
    theta, c = naive.minimiser(log)[0] + 1.0, np.array([1.0, -0.5, 0.3])
    problem = problem_of(log)
    assert errors_of(problem, theta, log.episode, "cr1").error(LinearFunction(c)).solver_error == pytest.approx(0.8)
    wrong = Errors.in_memory(OneEquation.of(problem, theta), Shard.of_log(problem, log.episode), "cr1")
    assert wrong.error(LinearFunction(c)).solver_error != pytest.approx(0.8, rel=0.01)
