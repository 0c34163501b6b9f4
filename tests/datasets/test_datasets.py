"""Problems with known solutions, and a simulator that equals Gymnasium's."""

import gymnasium
import numpy as np
import pytest

import valuefit as vf
from valuefit.datasets import mountain_car
from valuefit.datasets.baird import baird_features, baird_log
from valuefit.datasets.boyan import EXACT_WEIGHTS, boyan_features, boyan_log
from valuefit.datasets.mdp import random_mdp
from valuefit.datasets.random_walk import random_walk_log, random_walk_value


def test_random_mdp_has_the_sizes_of_the_paper():
    mdp = random_mdp()
    assert mdp.transition.shape == (10, 400, 400)
    assert mdp.features.shape == (400, 201)
    assert (mdp.features[:, -1] == 1).all()
    np.testing.assert_allclose(mdp.transition.sum(axis=2), 1)
    np.testing.assert_allclose(mdp.policy.sum(axis=1), 1)
    assert mdp.transition.min() > 0


def test_random_mdp_logs_follow_its_probabilities():
    mdp = random_mdp(states=4, actions=2, features=2, off_policy=True, seed=3)
    log = mdp.log(200_000, seed=1)
    state, after = log.observations[log.now], log.observations[log.next]
    assert (state[1:] == after[:-1]).all()
    for s in range(4):
        for a in range(2):
            chosen = (state == s) & (log.action == a)
            seen = np.bincount(after[chosen], minlength=4) / chosen.sum()
            assert np.abs(seen - mdp.transition[a, s]).max() < 5 / np.sqrt(chosen.sum())
            assert (log.reward[chosen] == mdp.reward[s, a]).all()
            assert np.allclose(log.ratio[chosen], mdp.policy[s, a] / mdp.behaviour[s, a])
        taken = np.bincount(log.action[state == s], minlength=2) / (state == s).sum()
        assert np.abs(taken - mdp.behaviour[s]).max() < 0.02


@pytest.mark.parametrize("off_policy", [False, True])
def test_random_mdp_moments_are_the_limit_of_its_logs(off_policy):
    mdp = random_mdp(states=8, actions=3, features=3, off_policy=off_policy, seed=1)
    problem = vf.Problem(mdp.log(400_000, seed=2), mdp.rows, discount=0.9)
    for found, exact in zip(problem.moments(), mdp.moments(0.9), strict=True):
        np.testing.assert_allclose(found, exact, atol=0.02)
    theta = vf.solve(problem, "lstd").theta
    assert mdp.mspbe(theta, 0.9) < 1e-4 * mdp.mspbe(np.zeros(4), 0.9)


def test_tabular_lstd_finds_the_exact_value_of_a_random_mdp():
    mdp = random_mdp(states=6, actions=2, features=2, off_policy=True, seed=5)
    problem = vf.Problem(mdp.log(400_000), discount=0.8)
    theta = vf.solve(problem, "lstd").theta
    np.testing.assert_allclose(theta, mdp.value(0.8), atol=0.03)


def test_random_mdp_seeds_reproduce_to_the_bit():
    one, two = (random_mdp(states=20, seed=7).log(1000, seed=8) for _ in range(2))
    assert one.reward.tobytes() == two.reward.tobytes()
    assert one.now.tobytes() == two.now.tobytes()
    assert random_mdp(states=20, seed=7).log(1000, seed=9).now.tobytes() != one.now.tobytes()


def test_mountain_car_equals_gymnasium_step_by_step():
    environment = gymnasium.make("MountainCar-v0").unwrapped
    rng = np.random.default_rng(0)
    goals_reached = 0
    for episode in range(6):
        environment.reset(seed=episode)
        state = np.array([environment.state])
        for _ in range(1500):
            # pushing along the velocity reaches the goal; random actions make the car hit the left wall
            action = int(rng.integers(3)) if rng.random() < 0.2 else 2 * int(state[0, 1] >= 0)
            _, reward, terminated, _, _ = environment.step(action)
            state, done = mountain_car.step(state, np.array([action]))
            np.testing.assert_allclose(state[0], environment.state, rtol=0, atol=1e-13)
            assert done[0] == terminated
            assert reward == mountain_car.REWARD
            if terminated:
                goals_reached += 1
                break
    assert goals_reached >= 4


def test_mountain_car_stops_at_the_left_wall_as_gymnasium_does():
    environment = gymnasium.make("MountainCar-v0").unwrapped
    environment.reset(seed=0)
    environment.state = (-1.19, -0.07)
    environment.step(0)
    state, _ = mountain_car.step(np.array([[-1.19, -0.07]]), np.array([0]))
    assert tuple(state[0]) == tuple(environment.state) == (-1.2, 0.0)


@pytest.fixture(scope="module")
def policy():
    return mountain_car.sarsa()


def test_sarsa_learns_a_good_policy(policy):
    assert policy.average_length(100, seed=1) < 200


def test_mountain_car_logs_have_the_requested_length_and_terminate_at_the_goal(policy):
    log = policy.log(3000, seed=2)
    assert len(log) == 3000
    ends = np.flatnonzero(log.terminated)
    assert len(ends) > 10
    assert log.truncated.sum() <= 1
    last = mountain_car.step(log.observations[log.now[ends]], log.action[ends])
    assert last.terminated.all()
    inside = ~log.terminated & ~log.truncated
    assert not mountain_car.step(log.observations[log.now[inside]], log.action[inside]).terminated.any()
    again = mountain_car.sarsa().log(3000, seed=2)
    assert again.observations.tobytes() == log.observations.tobytes()


def test_mountain_car_has_the_300_features_of_the_paper(policy):
    problem = vf.Problem(policy.log(5000), policy.tiles.transform, discount=0.99)
    assert problem.d == 300
    assert 150 < 300 - len(problem.dead) < 300  # the policy does not visit every tile
    assert (np.diff(problem.phi.matrix.indptr) == 12).all()


@pytest.mark.parametrize("solver", ["lstd", "saga", "ctd"])
def test_boyans_chain_is_solved_exactly_in_the_limit(solver):
    problem = vf.Problem(boyan_log(3000), boyan_features, discount=1.0)
    result = vf.solve(problem, solver, tol=1e-10, max_passes=3000)
    assert result.status == "converged"
    np.testing.assert_allclose(result.theta, EXACT_WEIGHTS, atol=0.5)


def test_lstd_finds_the_target_value_of_the_off_policy_walk():
    problem = vf.Problem(random_walk_log(20_000), discount=1.0)
    theta = vf.solve(problem, "lstd").theta
    np.testing.assert_allclose(theta, random_walk_value(), atol=0.03)
    assert np.abs(theta - random_walk_value(target=0.5)).max() > 0.1


def test_bairds_star_has_ratios_seven_and_zero():
    log = baird_log()
    assert set(np.round(log.ratio, 12)) == {0.0, 7.0}
    assert (log.observations[log.next[log.ratio > 0]] == 6).all()
    assert np.linalg.matrix_rank(baird_features(np.arange(7))) == 7
