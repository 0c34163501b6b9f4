"""The minimiser without each episode: against a solve of the remaining log, in every variant and by every route."""

from unittest.mock import patch

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.problems import problem_of
from helpers.small_log import VARIANTS, small_log
from valuefit.inference import jackknife
from valuefit.inference.adjoints import Equations
from valuefit.inference.cluster_residuals import solve_by_cluster
from valuefit.inference.clusters import Clusters
from valuefit.inference.influence import Influences
from valuefit.inference.jackknife import replicates
from valuefit.inference.shards import Shard
from valuefit.problem.exact import Exact
from valuefit.rows import compile


def without(log, cluster):
    """The minimiser of the terms of the other clusters, minus the minimiser, (clusters, d)."""
    found = []
    for label in np.unique(cluster):
        terms = [naive.matrices(log, step) for step, own in zip(naive.steps(log), cluster, strict=True) if own != label]
        A, b, C = (sum(parts) / len(terms) for parts in zip(*terms, strict=True))
        inverse = np.linalg.pinv(C, rcond=1e-12, hermitian=True)
        H = A.T @ inverse @ A + log.ridge * np.eye(A.shape[1])
        found.append(np.linalg.pinv(H, rcond=1e-11, hermitian=True) @ A.T @ inverse @ b)
    return np.array(found) - naive.minimiser(log)[0]


def replicates_of(problem, cluster):
    equations, clusters = Equations.of(problem, Exact(problem).theta), Clusters(cluster, int(cluster.max()) + 1)
    error = Influences(equations, Shard(problem, cluster, clusters)).td_errors
    return replicates(equations, problem, clusters, error)


@pytest.fixture
def every_iteration():
    """Iterations go on until rounding errors end them, however many it takes, and all clusters converge."""

    def solve(*arguments, tol, iterations):
        y, combination, converged = solve_by_cluster(*arguments, tol=1e-11, iterations=100)
        assert converged.all()
        return y, combination, converged

    with patch.object(jackknife, "solve_by_cluster", solve):
        yield


@pytest.mark.usefixtures("every_iteration")
@pytest.mark.parametrize("compiled", [False, True], ids=["direct", "iterated"])
@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
def test_they_are_the_minimisers_of_the_remaining_log(variant, storage, compiled):
    log = small_log(**variant)
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0 if compiled else np.inf):
        found = replicates_of(problem_of(log, storage), log.episode)
    expected = without(log, log.episode)
    np.testing.assert_allclose(found.theta, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())
    assert not found.undetermined
    left_out = [
        reward - v @ (naive.minimiser(log)[0] + expected[own])
        for (_, v, _, reward), own in zip(naive.steps(log), log.episode, strict=True)
    ]
    np.testing.assert_allclose(found.left_out, left_out, atol=1e-7 * np.abs(left_out).max())


@pytest.mark.usefixtures("every_iteration")
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_expensive_updates_of_a_small_log_are_iterated(storage):
    log = small_log()
    with patch.object(jackknife, "MAX_SMALL_FLOPS", 0):
        found = replicates_of(problem_of(log, storage), log.episode)
    assert found.first_order is not None
    assert replicates_of(problem_of(log, storage), log.episode).first_order is None
    expected = without(log, log.episode)
    np.testing.assert_allclose(found.theta, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
def test_long_clusters_are_solved_in_the_space_of_the_weights(variant, compiled):
    log = small_log(**variant)
    cluster = log.episode // 3
    never = patch.object(jackknife, "_max_iterations", lambda *_: 0)
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0 if compiled else np.inf), never:
        found, expected = replicates_of(problem_of(log), cluster), without(log, cluster)
    np.testing.assert_allclose(found.theta, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("trace", [0.0, 0.7])
def test_blocks_remove_the_terms_of_their_steps(trace):
    """The traces of later steps still reach back into the block."""
    log = small_log(trace=trace)
    cluster = np.arange(len(log.now)) // 7
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0):
        found = replicates_of(problem_of(log), cluster)
    np.testing.assert_allclose(found.theta, without(log, cluster), rtol=1e-8, atol=1e-9)


def one_hot_log(seed):
    """Forty states and thirty short episodes: some states occur in one episode only."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 8, 30)
    n = int(lengths.sum())
    state, last = rng.integers(0, 40, n), np.cumsum(lengths) - 1
    next = np.arange(1, n + 1)
    next[last] = -1
    Phi = np.eye(40)[state][:, np.unique(state)]
    return naive.Log(
        Phi, Phi, np.arange(n), next, rng.normal(size=n), np.where(next < 0, 0.0, 0.9), np.ones(n),
        np.repeat(np.arange(30), lengths), 0.0, 0.0, False,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_what_other_episodes_do_not_determine_is_told(seed):
    log = one_hot_log(seed)
    found, expected = replicates_of(problem_of(log), log.episode), without(log, log.episode)
    alone = [
        label for label in range(30)
        if (log.Phi[log.episode == label].any(axis=0) & ~log.Phi[log.episode != label].any(axis=0)).any()
    ]  # fmt: skip
    assert sorted(found.undetermined) == alone
    for label in range(30):
        difference = found.theta[label] - expected[label]
        if label in found.undetermined:
            basis = np.linalg.qr(found.undetermined[label])[0]
            difference = difference - basis @ (basis.T @ difference)
        np.testing.assert_allclose(difference, 0, atol=1e-9)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_episode_that_alone_determines_all_its_rows_changes_little(compiled):
    """Without it the equations are I - I up to rounding errors, whose inverse is about 1e14."""
    rng = np.random.default_rng(0)
    n, action = 900, rng.integers(2, size=900)
    ends = rng.random(n) < 0.3
    ends[-1] = True
    log = vf.Transitions.from_arrays(
        rng.integers(700, size=n), rng.normal(size=n), terminated=ends, action=action, behaviour_prob=np.full(n, 0.5),
        target_prob=np.where(action, 0.8, 0.2), episode=np.cumsum(np.append(0, ends[:-1])),
    )  # fmt: skip
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0 if compiled else compile.MIN_COMPILED_NUMBERS):
        errors = vf.evaluate(log, features="one-hot", discount=0.9).errors
    assert np.abs(errors.whole.replicates.theta).max() < 100
    assert len(errors.whole.replicates.undetermined) > 100


def leverage_problem():
    """Four episodes and 12 features: the leverage of each is high."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(61, 12))
    problem = vf.Problem.from_rows(rows, np.arange(60), np.arange(1, 61), rng.normal(size=60), 0.9)
    return problem, np.arange(60) // 15


@pytest.mark.parametrize("converges", [False, True])
def test_clusters_for_which_the_iteration_ends_early_are_solved_directly(converges):
    problem, cluster = leverage_problem()
    expected = replicates_of(problem, cluster)
    solve, count, ended = jackknife.solve_by_cluster, 30 if converges else 3, []

    def ends_early(*arguments, tol, iterations):
        y, combination, converged = solve(*arguments, tol=tol, iterations=count)
        ended.append(converged)
        return y, combination, converged

    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0), patch.object(jackknife, "solve_by_cluster", ends_early):
        found = replicates_of(problem, cluster)
    assert (ended[0] == converges).all()
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-3, atol=1e-3 * np.abs(expected.theta).max())


def test_features_that_are_all_zero_have_no_error():
    log = vf.Transitions.from_arrays(np.zeros((6, 1)), np.ones(6), terminated=np.arange(6) % 2 == 1)
    value = vf.evaluate(log, features="identity", discount=0.9).policy_value
    assert value.estimate == 0
    assert not value.standard_error


@pytest.mark.usefixtures("every_iteration")
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_what_one_episode_alone_determines_is_undetermined_without_it_by_iterations_too(storage):
    log = small_log()
    rare = (log.episode == 4) * np.random.default_rng(0).uniform(1, 2, len(log.episode))
    log = log._replace(Phi=np.column_stack([log.Phi, rare]), Psi=np.column_stack([log.Psi, rare]))
    problem = problem_of(log, storage)
    expected = replicates_of(problem, log.episode)
    with patch.object(jackknife, "MAX_SMALL_FLOPS", 0):
        found = replicates_of(problem, log.episode)
    assert found.first_order is not None  # it was iterated
    assert list(found.undetermined) == list(expected.undetermined) == [4]
    for one, other in zip(found.undetermined[4].T, expected.undetermined[4].T, strict=True):
        assert abs(one @ other) == pytest.approx(np.linalg.norm(one) * np.linalg.norm(other))
