"""Sums of instruments and TD errors: against refits without each episode, and against reweighted logs."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from helpers.fits import fit_of
from helpers.small_mdp import SmallMDP
from valuefit.checks.instruments import MAX_GROUPS
from valuefit.checks.moments import DRAWS, NEGLIGIBLE_MOVE, Sums, TDMoments

EPISODES = 15
VARIANTS = [{}, {"trace": 0.7}, {"csr": True}, {"off_policy": True}, {"off_policy": True, "trace": 0.5}]
STATE_ACTION = {"off_policy": True, "values": "state-action"}


def name_of(variant):
    return "+".join(variant) or "plain"


def fitted(*, off_policy=False, csr=False, values="state", **settings):
    """A fit of a small log, and instruments that are not functions of the state alone."""
    mdp = SmallMDP(off_policy=off_policy)
    policy = mdp.policy if off_policy else None
    features = (lambda state: sparse.csr_array(mdp.rows(state))) if csr else mdp.rows
    log = mdp.log(EPISODES, propensities=off_policy)
    fit = fit_of(log, features=features, discount=0.9, policy=policy, values=values, tol=1e-12, **settings)
    z = np.random.default_rng(0).normal(size=(len(log), 4))
    return fit, z


def weighted_moment(fit, z, weight):
    """sum weight ratio z delta(theta) with theta the solution of the log with these weights of its terms."""
    problem = fit.problem
    rows = problem.phi.matrix.toarray() if problem.phi.sparse else problem.phi.matrix
    v = rows[problem.now] - problem.discount[:, None] * rows[problem.next]
    u = np.empty_like(v)
    for t in range(problem.n):
        before = 0.0 if problem.begins[t] else problem.trace * problem.discount[t - 1] * u[t - 1]
        u[t] = problem.ratio[t] * (rows[problem.now[t]] + before)
    theta = np.linalg.solve(u.T @ (weight[:, None] * v), u.T @ (weight * problem.reward))
    return z.T @ (weight * problem.ratio * (problem.reward - v @ theta))


def changes_by_leaving_out(fit, z):
    """M - M_(-g) of every episode."""
    cluster, total = fit.errors.whole.clusters.of_step, weighted_moment(fit, z, np.ones(fit.problem.n))
    return np.array([total - weighted_moment(fit, z, (cluster != g).astype(float)) for g in range(EPISODES)])


def derivatives(fit, z, step=1e-5):
    """Of M in the weight of every episode."""
    cluster, found = fit.errors.whole.clusters.of_step, []
    for g in range(EPISODES):
        above, below = (weighted_moment(fit, z, 1 + sign * step * (cluster == g)) for sign in (1, -1))
        found.append((above - below) / (2 * step))
    return np.array(found)


@pytest.mark.parametrize("variant", [*VARIANTS, STATE_ACTION], ids=name_of)
def test_parts_are_the_mean_of_jackknife_and_derivative(variant):
    fit, z = fitted(**variant)
    found = TDMoments(fit).sums(np.arange(fit.problem.n), z)
    np.testing.assert_allclose(found.total, weighted_moment(fit, z, np.ones(fit.problem.n)), rtol=1e-8, atol=1e-9)
    expected = (changes_by_leaving_out(fit, z) + derivatives(fit, z)) / 2
    np.testing.assert_allclose(found.parts, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", [*VARIANTS, STATE_ACTION], ids=name_of)
def test_without_the_jackknife_they_are_derivatives(variant):
    fit, z = fitted(interval="cr1", **variant)
    found = TDMoments(fit).sums(np.arange(fit.problem.n), z)
    np.testing.assert_allclose(found.parts, derivatives(fit, z), rtol=1e-5, atol=1e-5)


def test_with_a_ridge_the_fit_without_one_is_tested():
    plain, z = fitted(interval="cr1")
    ridged, _ = fitted(interval="cr1", ridge=0.5)
    steps = np.arange(plain.problem.n)
    expected, found = TDMoments(plain).sums(steps, z), TDMoments(ridged).sums(steps, z)
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.parts, expected.parts, rtol=1e-8, atol=1e-9)
    assert ridged.problem.ridge == 0.5


@pytest.mark.parametrize("interval", ["cr3", "cr1"])
@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_one_instrument_over_all_steps_gives_the_same_sums(variant, interval):
    fit, z = fitted(interval=interval, **variant)
    moments = TDMoments(fit)
    expected, found = moments.sums(np.arange(fit.problem.n), z[:, :1]), moments.weighted_sum(z[:, 0])
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-9)
    np.testing.assert_allclose(found.parts, expected.parts, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("interval", ["cr3", "cr1"])
def test_an_unfinished_solution_is_completed(interval):
    finished, z = fitted(interval=interval)
    mdp = SmallMDP()
    early = fit_of(mdp.log(EPISODES), features=mdp.rows, discount=0.9, solver="gtd2", max_passes=2, interval=interval)
    assert np.abs(early.result.theta - finished.result.theta).max() > 1e-3
    steps = np.arange(finished.problem.n)
    total = TDMoments(early).sums(steps, z).total
    np.testing.assert_allclose(total, TDMoments(finished).sums(steps, z).total, rtol=1e-7)


def test_features_are_no_instruments():
    fit, z = fitted()
    mdp = SmallMDP()
    steps, features = np.arange(fit.problem.n), mdp.rows(fit.log.observations[fit.log.now])
    moments = TDMoments(fit)
    assert moments.sums(steps, features) is None
    found = moments.sums(steps, np.column_stack([features, z]))
    assert (found.parts.any(axis=0) == np.repeat([False, True], [3, 4])).all()


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_terms_of_disjoint_steps_add_up(variant):
    """With factors they are those of instruments times these factors."""
    fit, z = fitted(**variant)
    moments, steps = TDMoments(fit), np.arange(fit.problem.n)
    late = np.random.default_rng(2).random(len(steps)) < 0.5
    early, later = (moments.terms(steps[part], z[part]) for part in (~late, late))
    found = early.columns(slice(1, 3)).plus(later.columns(slice(1, 3)), own=-0.3, factor=0.7)
    expected = moments.terms(steps, (late - 0.3)[:, None] * z[:, 1:3])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_the_first_order_of_the_jackknife_are_the_first_order_changes():
    rng = np.random.default_rng(3)
    steps, length = 12_000, 40
    ends = np.arange(steps) % length == length - 1
    log = vf.Transitions.from_arrays(rng.normal(size=(steps, 90)), rng.normal(size=steps), terminated=ends)
    fit = fit_of(log, features=lambda x: x, discount=0.9)
    assert fit.errors.whole.replicates.first_order is not None  # the log is large
    assert TDMoments(fit).influences is fit.errors.whole.influences
    expected = fit.errors.whole.influences.changes(np.ones(steps))
    np.testing.assert_allclose(TDMoments(fit).changes, expected, rtol=1e-8, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_negligible_distance_from_the_minimiser_keeps_the_td_errors(share):
    fit, _ = fitted()
    whole, rng = fit.errors.whole, np.random.default_rng(0)
    move = rng.normal(size=fit.problem.d)
    change = TDMoments(fit).v_products(np.arange(fit.problem.n), move)
    move *= share * NEGLIGIBLE_MOVE * np.linalg.norm(whole.influences.td_errors) / np.linalg.norm(change)
    moved = replace(fit, equations=fit.equations.at(fit.equations.theta + move), interval="cr1")
    assert (TDMoments(moved).influences is moved.errors.whole.influences) == (share < 1)


def test_the_p_value_is_that_of_random_signs():
    parts = np.random.default_rng(1).normal(size=(50, 3))
    null, shifted = Sums(parts.sum(axis=0), parts), Sums(parts.sum(axis=0) + 100, parts)
    assert null.p_value(0) == null.p_value(0)
    assert 0.05 < null.p_value(0) <= 1
    assert shifted.p_value(0) == 1 / (DRAWS + 1)
    assert shifted.statistic > 10
    assert shifted.scaled().p_value(0) == shifted.p_value(0)


def test_one_dominating_cluster_is_no_evidence():
    parts = np.zeros((40, 2))
    parts[7] = 5.0
    assert Sums(parts.sum(axis=0), parts).p_value(0) == 1


def test_many_clusters_share_signs():
    parts = np.random.default_rng(2).normal(size=(3 * MAX_GROUPS, 2))
    assert Sums(parts.sum(axis=0), parts).p_value(0) > 0.02
    assert Sums(parts.sum(axis=0), np.zeros((3 * MAX_GROUPS, 2)) + 1e-3).p_value(0) < 0.02
