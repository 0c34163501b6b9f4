"""LSTD-Q: against plain loops, against the exact values of a small MDP, and against ratios on the same log."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse

import naive
import valuefit as vf
from helpers.problems import STORAGES
from valuefit.data.transitions import effective_sample_size
from valuefit.datasets.mdp import RandomMDP, random_mdp
from valuefit.features import Fourier, StateAction, make
from valuefit.policies.importance import with_ratios
from valuefit.policies.state_action import state_action_problem, unseen_share
from valuefit.solvers.lstd import LSTD

STATES, CHOICES, DISCOUNT = 8, 3, 0.9


@pytest.fixture(scope="module")
def mdp() -> RandomMDP:
    """A small MDP whose log comes from the uniform policy, which is not the target policy."""
    drawn = random_mdp(STATES, CHOICES, 4, seed=1)
    sharp = drawn.policy**3 / (drawn.policy**3).sum(axis=1, keepdims=True)
    return replace(drawn, policy=sharp, behaviour=np.full((STATES, CHOICES), 1 / CHOICES))


def log_of(mdp, steps, seed=0):
    log = mdp.log(steps, seed=seed)
    return replace(log, ratio=np.ones(steps), behaviour_prob=np.full(steps, 1 / CHOICES))


def exact_q(transition, reward, policy):
    """Q = r + discount P Pi Q, by plain loops over states and actions."""
    size = STATES * CHOICES
    system, known = np.eye(size), np.zeros(size)
    for s in range(STATES):
        for a in range(CHOICES):
            known[s * CHOICES + a] = reward[s, a]
            for s2 in range(STATES):
                for a2 in range(CHOICES):
                    system[s * CHOICES + a, s2 * CHOICES + a2] -= DISCOUNT * transition[a, s, s2] * policy[s2, a2]
    return np.linalg.solve(system, known).reshape(STATES, CHOICES)


def table_of(theta):
    return theta.reshape(CHOICES, STATES).T


def test_with_one_hot_features_it_solves_the_empirical_model(mdp):
    log = log_of(mdp, 3000)
    counts, total = np.zeros((CHOICES, STATES, STATES)), np.zeros((STATES, CHOICES))
    for t in range(len(log)):
        s, a, s2 = log.observations[log.now[t]], log.action[t], log.observations[log.next[t]]
        counts[a, s, s2] += 1
        total[s, a] += log.reward[t]
    visits = counts.sum(axis=2).T
    expected = exact_q(counts / visits.T[:, :, None], total / visits, mdp.policy)
    problem = state_action_problem(log, "one-hot", policy=mdp.policy, discount=DISCOUNT)
    found = vf.solve(problem, "lstd").theta
    np.testing.assert_allclose(table_of(found), expected, rtol=1e-9)
    assert problem.phi.sparse
    assert problem.phi.shape == (STATES * CHOICES + STATES, STATES * CHOICES)


def test_state_action_values_and_ratios_agree_with_the_truth(mdp):
    log = log_of(mdp, 200_000)
    truth = exact_q(mdp.transition, mdp.reward, mdp.policy)
    value = mdp.value(DISCOUNT)
    np.testing.assert_allclose((mdp.policy * truth).sum(axis=1), value, rtol=1e-10)  # Q and V of one policy
    theta = vf.solve(state_action_problem(log, "one-hot", policy=mdp.policy, discount=DISCOUNT), "lstd").theta
    np.testing.assert_allclose(table_of(theta), truth, atol=0.02)
    weighted = with_ratios(log, mdp.policy)
    by_ratio = vf.solve(vf.Problem(weighted, discount=DISCOUNT), "lstd").theta
    np.testing.assert_allclose(by_ratio, value, atol=0.02)
    # the behaviour policy has other values, so both methods have something to correct
    behaviour_value = vf.solve(vf.Problem(log, discount=DISCOUNT), "lstd").theta
    assert abs(behaviour_value - value).max() > 0.3
    assert 0.3 * len(log) < effective_sample_size(weighted.ratio) < 0.9 * len(log)
    stacked = StateAction.of(make("one-hot", log)[0], CHOICES)
    np.testing.assert_allclose(stacked.expected(np.arange(STATES), mdp.policy) @ theta, value, atol=0.02)


def test_any_trace_finds_the_same_values_where_features_can_express_them(mdp):
    log = log_of(mdp, 200_000, seed=3)
    truth = exact_q(mdp.transition, mdp.reward, mdp.policy)
    problem = state_action_problem(log, "one-hot", policy=mdp.policy, discount=DISCOUNT, trace=0.6)
    np.testing.assert_allclose(table_of(vf.solve(problem, "lstd").theta), truth, atol=0.02)


def episodes(seed, dimensions=2, choices=3, steps=60):
    rng = np.random.default_rng(seed)
    ends = rng.random(steps) < 0.2
    ends[-1] = True
    terminated = ends & (rng.random(steps) < 0.6)
    terminated[-1] = True
    return vf.Transitions.from_arrays(
        rng.random((steps, dimensions)),
        rng.random(steps),
        terminated=terminated,
        truncated=ends & ~terminated,
        action=rng.integers(0, choices, steps),
        next_observation=rng.random((steps, dimensions)),
    )


def naive_problem(log, features, policy, choices, discount, trace, ridge):
    """Two rows per step, by plain loops, without code from the library."""
    rows, next = [], []
    width = features(log.observations[:1]).shape[1]
    for t in range(len(log)):
        row = np.zeros(choices * width)
        a = int(log.action[t])
        row[a * width : (a + 1) * width] = features(log.observations[[log.now[t]]])[0]
        after = np.zeros(choices * width)
        if not log.terminated[t]:
            observation = log.observations[[log.next[t]]]
            for b, chance in enumerate(policy(observation)[0]):
                after[b * width : (b + 1) * width] += chance * features(observation)[0]
        rows += [row, after]
        next.append(-1 if log.terminated[t] else 2 * t + 1)
    n = len(log)
    return naive.Log(
        np.array(rows), np.array(rows), 2 * np.arange(n), np.array(next), log.reward,
        np.where(log.terminated, 0.0, discount), np.ones(n), np.cumsum(log.begins), trace, ridge,
    )  # fmt: skip


def soft(observations):
    weights = np.exp(3 * np.column_stack([observations[:, 0], observations[:, 1], 0 * observations[:, 0]]))
    return weights / weights.sum(axis=1, keepdims=True)


def greedy(observations):
    return np.eye(3)[np.argmax(soft(observations), axis=1)]


@pytest.mark.parametrize("policy", [soft, greedy])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("trace", "ridge"), [(0.0, 0.0), (0.7, 0.1)])
def test_moments_equal_those_of_plain_loops(policy, storage, trace, ridge):
    log = episodes(seed=5)
    fourier = Fourier(1).fit(log.observations)

    def features(observations):
        return STORAGES[storage](fourier.transform(observations))

    def dense(observations):
        rows = features(observations)
        return rows.toarray() if sparse.issparse(rows) else rows.astype(np.float64)

    problem = state_action_problem(log, features, policy=policy, discount=0.8, trace=trace, ridge=ridge)
    slow = naive.moments(naive_problem(log, dense, policy, 3, 0.8, trace, ridge))
    for fast, expected in zip(problem.moments(), slow, strict=True):
        np.testing.assert_allclose(fast, expected, atol=1e-6 if storage == "float32" else 1e-13)
    assert problem.ridge == ridge
    assert problem.phi.sparse == (storage == "csr")
    assert (problem.phi.dtype == np.float32) == (storage == "float32")


def test_a_policy_of_observations_and_actions_gives_the_same_problem():
    log = episodes(seed=6)
    features, _ = make("polynomial", log)
    one = state_action_problem(log, features, policy=soft)
    two = state_action_problem(log, features, policy=lambda obs, act: soft(obs)[np.arange(len(act)), act])
    np.testing.assert_allclose(one.A, two.A, atol=1e-15)


def test_traces_restart_after_the_gaps_of_a_sliced_log():
    log = episodes(seed=7)
    features, _ = make("fourier:order=1", log)
    part = log[np.r_[0:5, 20:30, 8:12]]
    fast = state_action_problem(part, features, policy=soft, discount=0.8, trace=0.9).moments()
    slow = naive.moments(naive_problem(part, features, soft, 3, 0.8, 0.9, 0.0))
    for found, expected in zip(fast, slow, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_many_actions_of_a_deterministic_policy_stay_sparse():
    log = episodes(seed=8, choices=20, steps=400)
    deterministic = state_action_problem(log, "fourier:order=2", policy=lambda obs: np.eye(20)[np.full(len(obs), 4)])
    uniform = state_action_problem(log, "fourier:order=2", policy=lambda obs: np.full((len(obs), 20), 1 / 20))
    assert deterministic.phi.sparse
    assert not uniform.phi.sparse
    assert deterministic.phi.stored == deterministic.phi.shape[0] * 9


def test_a_log_whose_every_step_terminates_needs_no_next_row():
    log = vf.Transitions.from_arrays(np.arange(4), np.arange(4.0), terminated=np.ones(4), action=[0, 1, 0, 1])
    problem = state_action_problem(log, "one-hot", policy=np.full((4, 2), 0.5), discount=1.0)
    np.testing.assert_allclose(vf.solve(problem, "lstd").theta, [0, 0, 2, 0, 0, 1, 0, 3], atol=1e-12)


def test_actions_that_the_log_never_takes_are_refused_or_measured():
    log = episodes(seed=9)
    with pytest.raises(ValueError, match=r"takes action 3 with probability 0.25 on average, but the log never does"):
        state_action_problem(log, "fourier", policy=lambda obs: np.full((len(obs), 4), 0.25))
    rare = np.array([0.4, 0.3, 0.299, 0.001])
    assert state_action_problem(log, "polynomial", policy=lambda obs: np.tile(rare, (len(obs), 1))).d == 4 * 6
    assert unseen_share(log, "polynomial", policy=lambda obs: np.tile(rare, (len(obs), 1))) == pytest.approx(0.001)
    # state 1 occurs as a next state, but action 1 is never taken there
    states = vf.Transitions.from_arrays(
        [0, 1, 0], np.zeros(3), terminated=[0, 0, 1], action=[0, 0, 1], behaviour_prob=None
    )
    assert unseen_share(states, "one-hot", policy=np.array([[0.5, 0.5], [0.8, 0.2]])) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (None, 'need a target policy. Give `policy`, or use `values="state"`'),
        (np.full(60, 0.5), "probability of the logged action only"),
        (lambda obs: np.full((len(obs), 2), 0.5), "has 2 actions, 0 to 1"),
        (np.full((5, 3), 1 / 3), "not whole numbers. Give a callable"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        state_action_problem(episodes(seed=5), "fourier", policy=policy)


def test_actions_that_do_not_fit_are_refused():
    log = episodes(seed=5)
    with pytest.raises(ValueError, match="The log has no actions"):
        state_action_problem(replace(log, action=None), "fourier", policy=soft)
    with pytest.raises(ValueError, match="not whole numbers"):
        state_action_problem(replace(log, action=log.action + 0.5), "fourier", policy=soft)


def test_a_policy_of_actions_is_not_asked_for_actions_that_gaps_in_the_numbers_leave():
    log = vf.Transitions.from_arrays(np.arange(8.0), np.ones(8), action=np.arange(8) * 10**11, terminated=np.ones(8))
    with pytest.raises(ValueError, match=r"The log has action 700000000000, but only 8 steps\. Number the actions"):
        vf.evaluate(log, policy=lambda observations, actions: np.ones(len(actions)), values="state-action")


def test_a_policy_that_takes_one_action_costs_less_than_one_that_takes_all():
    rng, n = np.random.default_rng(0), 2000
    log = vf.Transitions.from_arrays(
        rng.standard_normal((n, 4)), rng.standard_normal(n), terminated=np.arange(n) % 20 == 19,
        episode=np.arange(n) // 20, action=rng.integers(0, 4, n),
    )  # fmt: skip
    spread, single = np.full((n, 4), 0.25), np.eye(4)[rng.integers(0, 4, n)]

    def problem_of(probabilities):
        policy = lambda x: probabilities[: len(x)]  # noqa: E731
        return state_action_problem(log, "kernel:landmarks=60", policy=policy, discount=0.9)

    stochastic, greedy = problem_of(spread), problem_of(single)
    assert greedy.phi.ranges is not None
    assert 4 * LSTD().cost(greedy, 0.0).moments < LSTD().cost(stochastic, 0.0).moments
    nearly = problem_of(single * (1 - 1e-14) + 0.25e-14)  # dense rows
    assert not nearly.phi.sparse
    np.testing.assert_allclose(greedy.A, nearly.A, rtol=0, atol=1e-9 * abs(nearly.A).max())
    np.testing.assert_allclose(greedy.C, nearly.C, rtol=0, atol=1e-9 * abs(nearly.C).max())
