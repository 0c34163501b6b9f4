"""The bootstrap by episode: replicates against re-solved weighted problems, standard errors against CR3."""

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.problems import problem_of, wide_log
from helpers.small_log import VARIANTS, small_log
from helpers.small_mdp import SmallMDP
from valuefit.evaluation import jackknife, reweighted
from valuefit.evaluation.bootstrap import Bootstrap
from valuefit.evaluation.errors import LinearFunction
from valuefit.evaluation.sandwich import Sandwich


def solved(log, weights):
    """The minimiser of the problem in which the steps have these weights."""
    terms = [naive.matrices(log, step) for step in naive.steps(log)]
    A, b, C = (sum(w * part for w, part in zip(weights, parts, strict=True)) for parts in zip(*terms, strict=True))
    if log.identity:
        C = weights.sum() * np.eye(len(b))
    inverse = np.linalg.inv(C)
    return np.linalg.solve(A.T @ inverse @ A + weights.sum() * log.ridge * np.eye(A.shape[1]), A.T @ inverse @ b)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
def test_replicates_are_the_minimisers_of_the_weighted_problems(variant):
    log = small_log(**variant)
    problem = problem_of(log)
    sandwich = Sandwich(problem, vf.solve(problem, "lstd", tol=1e-20).theta, log.episode)
    found = Bootstrap(sandwich, seed=1, count=5)
    first = np.flatnonzero(np.diff(log.episode, prepend=-1))
    rows = log.Phi[log.now[first]]
    values = found.values(LinearFunction(rows.mean(axis=0), rows, first))
    for weights, theta, value in zip(found.weights, found.theta, values, strict=True):
        expected = solved(log, weights[sandwich.cluster])
        np.testing.assert_allclose(theta, expected, rtol=1e-6, atol=1e-8)
        starts = weights[sandwich.cluster[first]]
        assert value == pytest.approx(starts @ (rows @ expected) / starts.sum(), rel=1e-6)


def test_two_thousand_replicates_and_cr3_agree_on_a_large_sample():
    mdp = SmallMDP(off_policy=True)
    log = mdp.log(2000)
    evaluation = vf.evaluate(log, discount=0.9, features=mdp.rows)
    first = np.flatnonzero(log.begins)
    rows = mdp.rows(log.observations[log.now[first]])
    sandwich = Sandwich(evaluation.problem, evaluation.result.theta, log.episode)
    found = Bootstrap(sandwich, count=2000).standard_error(LinearFunction(rows.mean(axis=0), rows, first))
    assert found == pytest.approx(evaluation.policy_value.standard_error, rel=0.05)


def test_the_error_of_a_mean_is_that_of_the_mean():
    """One state that terminates at once: the estimate is the mean reward."""
    reward = np.random.default_rng(0).normal(size=12)
    log = vf.Transitions.from_arrays(np.zeros(12, int), reward, terminated=np.ones(12, bool))
    problem = vf.Problem(log)
    sandwich = Sandwich(problem, vf.solve(problem, "lstd").theta, log.episode)
    found = Bootstrap(sandwich, count=20000).standard_error(LinearFunction(np.ones(1)))
    assert found == pytest.approx(reward.std(ddof=1) / np.sqrt(12), rel=0.02)


def test_evaluate_takes_it_and_the_seed_decides(tmp_path):
    mdp = SmallMDP(off_policy=True)
    log = mdp.log(100)
    usual, found, again, other = (
        vf.evaluate(log, discount=0.9, interval=kind, seed=seed)
        for kind, seed in (("cr3", 0), ("bootstrap", 0), ("bootstrap", 0), ("bootstrap", 1))
    )
    assert found.policy_value == again.policy_value != other.policy_value
    assert found.policy_value.method == "bootstrap"
    assert found.policy_value.standard_error == pytest.approx(usual.policy_value.standard_error, rel=0.2)
    assert any("the bootstrap" in note for note in found.notes)
    loaded = vf.Evaluation.load(found.save(tmp_path / "a.npz"))
    assert loaded.policy_value == found.policy_value
    np.testing.assert_array_equal(loaded.value_interval([0, 1]), usual.value_interval([0, 1]))


def test_features_that_are_not_determined_have_no_error():
    log = wide_log()
    twice = vf.evaluate(log, features=lambda x: np.hstack([x, x]), interval="bootstrap", discount=0.9)
    assert twice.policy_value.standard_error == pytest.approx(
        vf.evaluate(log, features="identity", interval="bootstrap", discount=0.9).policy_value.standard_error, rel=1e-4
    )


def replicates(log, *, features=None, **settings):
    """theta in 20 reweighted logs, minus theta."""
    problem = vf.Problem(log, features, discount=0.9, **settings)
    sandwich = Sandwich(problem, vf.solve(problem, "lstd", tol=1e-20).theta, log.episode)
    return Bootstrap(sandwich, count=20).theta - sandwich.theta


def table_log(episodes=150, states=40, length=20):
    """With ratios, transitions that occur often, and ends."""
    rng = np.random.default_rng(0)
    n = episodes * length
    state = np.cumsum(rng.integers(0, 3, n)) % states
    return vf.Transitions.from_arrays(
        state, np.sin(state) + rng.normal(size=n), terminated=np.arange(n) % length == length - 1,
        episode=np.arange(n) // length, ratio=rng.uniform(0.5, 1.5, n),
    )  # fmt: skip


def directly(monkeypatch):
    monkeypatch.setattr(jackknife, "USUAL_ITERATIONS", np.inf)


def pairs(state):
    return np.repeat(np.eye(40)[np.asarray(state, int).ravel()], 2, axis=1)  # each column twice: A is singular


@pytest.mark.parametrize("features", [None, pairs], ids=["table", "singular"])
def test_tables_are_iterated_and_merged_steps_give_the_minimisers(monkeypatch, features):
    log = table_log()
    with monkeypatch.context() as patched:
        directly(patched)
        expected = replicates(log, features=features)
    with monkeypatch.context() as patched:
        patched.setattr(jackknife, "_reweighted", lambda *_: pytest.fail("solved directly"))
        patched.setattr(reweighted, "memory_limit", lambda: 32 * 120 * 7)  # 7 draws of 120 transitions at a time
        usual = replicates(log, features=features)
        patched.setattr(reweighted, "MAX_RESIDUAL", 1e-8)
        found = replicates(log, features=features)
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
    np.testing.assert_allclose(usual.std(axis=0), expected.std(axis=0), rtol=0.02)


def test_replicates_that_do_not_converge_are_solved_directly(monkeypatch):
    log, direct = table_log(), jackknife._reweighted
    with monkeypatch.context() as patched:
        directly(patched)
        expected = replicates(log)
    solved = []
    monkeypatch.setattr(reweighted, "MAX_ITERATIONS", 4)
    monkeypatch.setattr(reweighted, "MAX_RESIDUAL", 1e-3)
    monkeypatch.setattr(jackknife, "_reweighted", lambda *given: solved.extend(given[1]) or direct(*given))
    found = replicates(log)
    assert 0 < len(solved) < 20
    exact = [np.allclose(one, other, rtol=1e-9, atol=1e-12) for one, other in zip(found, expected, strict=True)]
    assert sum(exact) >= len(solved)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_replicates_are_solved_in_parts_that_fit_into_memory(monkeypatch, ridge):
    log = table_log()
    directly(monkeypatch)
    expected = replicates(log, ridge=ridge)
    monkeypatch.setattr(jackknife, "memory_limit", lambda: 32 * 80**2 * 3)
    np.testing.assert_allclose(replicates(log, ridge=ridge), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(("kind", "name"), [("cr3", "The jackknife (CR3)"), ("bootstrap", "The bootstrap")])
def test_a_note_says_that_it_was_not_used_and_why(monkeypatch, kind, name):
    def notes():
        found = vf.evaluate(wide_log(), features="identity", discount=0.9, interval=kind)
        return found.policy_value.method, " ".join(found.notes)

    method, given = notes()
    assert method == kind
    assert "was not used" not in given
    with monkeypatch.context() as patched:
        patched.setattr("valuefit.evaluation.uncertainty.memory_limit", lambda: 1000)
        method, given = notes()
    assert method == "cr1"
    assert f"{name} was not used, because it does not fit into memory." in given
    monkeypatch.setattr(Sandwich, "_moments_affordable", False)
    method, given = notes()
    assert method == "cr1"
    assert f"{name} was not used, because it needs a direct solution, for which there are too many features." in given


def test_a_seed_may_be_a_whole_number_of_any_type():
    options = {"features": "identity", "interval": "bootstrap", "discount": 0.9}
    errors = {
        vf.evaluate(wide_log(), seed=seed, **options).policy_value.standard_error for seed in (0, -0.0, np.int8(0))
    }
    assert len(errors) == 1
