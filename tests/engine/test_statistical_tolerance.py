"""The statistical tolerance equals plain loops, and it bounds the solver error of any c'theta."""

import numpy as np
import pytest
import scipy.linalg as linalg

import naive
import valuefit as vf
from helpers.problems import problem_of
from valuefit.engine import statistical_tolerance
from valuefit.engine.statistical_tolerance import LOOSEST_GAP, optimistic_gap, supported_gap
from valuefit.evaluation.errors import LinearFunction
from valuefit.evaluation.sandwich import Sandwich
from valuefit.problem.exact import Exact


def log_of(*, trace=0.0, off_policy=False, dual=False, identity=False, alternate=0.0, level=1.0, episodes=40):
    """A naive log of many episodes; rewards are `level` plus noise that cancels in pairs of steps (`alternate`)."""
    rng = np.random.default_rng(0)
    lengths = 2 * rng.integers(2, 6, episodes)
    n = int(lengths.sum())
    last = np.cumsum(lengths) - 1
    next = np.arange(1, n + 1)
    next[last] = -1
    Phi = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    pairs = np.repeat(rng.normal(size=n // 2), 2) * np.tile([1.0, -1.0], n // 2)
    return naive.Log(
        Phi, np.column_stack([Phi, rng.normal(size=(n, 2))]) if dual else Phi, np.arange(n), next,
        0.1 * rng.normal(size=n) + Phi @ [level, 0.5, 0.0] + alternate * pairs, np.where(next < 0, 0.0, 0.8),
        rng.uniform(0.3, 2, n) if off_policy else np.ones(n), np.repeat(np.arange(episodes), lengths), trace, 0.0,
        identity,
    )  # fmt: skip


def by_loops(log, theta):
    """0.01 times the smallest g'Sg / g'Cg, over n times the mean squared trace of rewards."""
    k, n = log.Psi.shape[1], len(log.now)
    sums, C, z, after = {}, np.zeros((k, k)), np.zeros(n), 0.0
    for t, step in enumerate(naive.steps(log)):
        A_t, b_t, C_t = naive.matrices(log, step)
        sums[log.episode[t]] = sums.get(log.episode[t], np.zeros(k)) + b_t - A_t @ theta
        C += C_t / n
    for t in reversed(range(n)):
        after = 0.0 if t + 1 == n or log.episode[t + 1] != log.episode[t] else after
        after = log.ratio[t] * (log.reward[t] + log.trace * log.discount[t] * after)
        z[t] = after
    S = sum(np.outer(part, part) for part in sums.values()) / n
    return 0.01 * linalg.eigh(S, C, eigvals_only=True)[0] / (n * np.mean(z**2))


VARIANTS = [
    {},
    {"trace": 0.7},
    {"off_policy": True},
    {"dual": True, "trace": 0.4},
    {"identity": True, "off_policy": True, "trace": 0.8},
    {"alternate": 1.0},
]


def named(variant):
    return "+".join(variant) or "plain"


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("variant", VARIANTS, ids=named)
def test_noise_equals_that_of_plain_loops(variant, storage, monkeypatch):
    log = log_of(**variant)
    monkeypatch.setattr(statistical_tolerance, "NOISE_DIRECTIONS", log.Psi.shape[1])
    theta = naive.minimiser(log)[0]
    # with as many directions as features, the random subspace is the whole space
    assert supported_gap(problem_of(log, storage), theta) == pytest.approx(by_loops(log, theta), rel=1e-6)


def worst(log, gap_of):
    """The largest relative solver error of c'theta, over random c and random theta at this gap."""
    problem = problem_of(log)
    best, exact, rng = naive.minimiser(log)[0], Exact(problem_of(log)), np.random.default_rng(1)
    allowed, found = gap_of(problem, best) * exact.scale, 0.0
    for _ in range(20):
        off = rng.normal(size=3)
        theta = best + off * np.sqrt(allowed / exact.excess(best + off))
        sandwich = Sandwich(problem, theta, log.episode)
        found = max(found, *(sandwich.error(LinearFunction(c)).relative_solver_error for c in rng.normal(size=(20, 3))))
    return found


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if "dual" not in variant], ids=named)
def test_the_supported_gap_is_small_enough_for_any_c(variant):
    assert worst(log_of(**variant), supported_gap) <= 1.02


def step_by_step(problem, theta):
    """A planted fault: the mean squared TD error, as if steps were independent."""
    value = problem.phi.matrix @ theta
    td = problem.reward + problem.discount * value[problem.next] - value[problem.now]
    return 0.01 * np.mean(td**2) / (problem.n * np.mean(problem.reward**2))


def test_a_tolerance_that_assumes_independent_steps_is_too_loose():
    log = log_of(alternate=1.0, level=10.0)
    assert worst(log, step_by_step) > 1.5
    assert worst(log, supported_gap) <= 1.02


def test_few_episodes_use_the_mean_eigenvalue_not_the_smallest():
    log = log_of(episodes=6)
    theta = naive.minimiser(log)[0]
    assert supported_gap(problem_of(log), theta) > 2 * by_loops(log, theta)


def test_rewards_of_zero_give_a_gap_of_zero():
    problem = problem_of(log_of()._replace(reward=np.zeros(len(log_of().now))))
    assert supported_gap(problem, np.ones(3)) == optimistic_gap(problem) == 0


def test_the_gap_of_a_short_log_is_capped():
    problem = vf.Problem.from_rows(np.eye(2), [0, 1], [-1, -1], [1.0, -1.0], 0.9)
    assert supported_gap(problem, np.full(2, 100.0)) == LOOSEST_GAP
    assert optimistic_gap(problem) == LOOSEST_GAP


def test_features_that_are_all_zero_have_no_noise():
    problem = vf.Problem.from_rows(np.zeros((2, 2)), [0, 1], [-1, -1], [1.0, -1.0], 0.9)
    assert supported_gap(problem, np.zeros(2)) == 0


@pytest.mark.parametrize("variant", [{}, {"trace": 0.7}, {"off_policy": True}], ids=named)
def test_the_optimistic_gap_is_not_below_the_supported_gap(variant):
    log = log_of(**variant)
    assert optimistic_gap(problem_of(log)) >= supported_gap(problem_of(log), naive.minimiser(log)[0])
