"""The check of stays: a log without the landing that only a long rest reaches, its remedy, clean logs, plain loops."""

from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.fits import fit_of
from valuefit.checks.stays import MAX_STAY_SHARE, followed_stays

REST, DISCOUNT = 20, 0.98  # steps on the ground without firing, after which it has landed


def flights(fires, episodes=120, *, seed=0, clock=False):
    """A glider: it sinks, and each firing lifts it or, one time in ten, breaks it; a rest ends in a landing, worth 10.

    fires: probability of firing. clock: whether the log has the number of steps at rest.
    """
    rng, rows = np.random.default_rng(seed), []
    for episode in range(episodes):
        height, rest, ends = rng.uniform(0.5, 1.5), 0, False
        while not ends:
            before, fire = (height, rest), rng.random() < fires
            height = height + rng.uniform(0.2, 0.6) if fire else max(height - rng.uniform(0.1, 0.2), 0.0)
            rest = rest + 1 if before[0] == 0 and not fire else 0
            broken, landed = fire and rng.random() < 0.1, rest == REST
            ends = broken or landed
            probability = fires if fire else 1 - fires
            rows.append((episode, before, int(fire), 10.0 * landed - broken, ends, probability, (height, rest)))
    names = "episode", "obs", "action", "reward", "terminated", "behaviour_prob", "next_obs"
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    for name in ("obs", "next_obs"):
        columns[name] = columns[name][:, : 1 + clock].astype(float)
    return vf.load(columns)


def mostly_quiet(observations):
    return np.tile([0.95, 0.05], (len(observations), 1))


def evaluated(log, **settings):
    return vf.evaluate(log, policy=mostly_quiet, discount=DISCOUNT, features="kernel:landmarks=60", **settings)


def check_of(evaluation):
    return next((check for check in evaluation.checks if check.name == "stays"), None)


@pytest.fixture(scope="module")
def truth():
    """The value of the target policy, from its own episodes."""
    log = flights(0.05, 4000, seed=1)
    first = np.flatnonzero(log.begins)
    times = np.arange(len(log)) - np.repeat(first, np.diff(np.append(first, len(log))))
    return float((log.reward * DISCOUNT**times).sum() / len(first))


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_a_log_without_the_landing_is_caught(values, truth):
    evaluation = evaluated(flights(0.4), values=values)
    assert evaluation.policy_value.interval[1] < truth - 2
    check = check_of(evaluation)
    assert check.outcome == "warn"
    assert check.statistic > 2 * MAX_STAY_SHARE
    assert check.message in evaluation.warnings


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_a_log_of_long_stays_whose_length_is_observed_is_right(values, truth):
    # what the message advises
    evaluation = evaluated(flights(0.1, clock=True), values=values)
    low, high = evaluation.policy_value.interval
    assert low <= truth <= high
    assert check_of(evaluation).outcome == "pass"


def wandering(pace, episodes=80, length=40, *, seed=0):
    """Walks that a coin moves up or down at this pace on a line."""
    rng = np.random.default_rng(seed)
    action = rng.integers(2, size=(episodes, length))
    moves = (2 * action - 1) * pace * rng.random(action.shape)
    start = rng.normal(size=episodes)
    place = (start[:, None] + np.cumsum(np.column_stack([np.zeros(episodes), moves]), axis=1))[:, :, None]
    last = np.tile(np.arange(length) == length - 1, episodes)
    now, after = (part.reshape(-1, *part.shape[2:]) for part in (place[:, :-1], place[:, 1:]))
    return vf.Transitions.from_arrays(
        now, rng.normal(size=len(now)), episode=np.repeat(np.arange(episodes), length), truncated=last,
        terminated=np.zeros(len(now), bool), action=action.ravel(), behaviour_prob=np.full(len(now), 0.5),
        next_observation=after,
    )  # fmt: skip


def mostly_up(observations):
    return np.tile([0.3, 0.7], (len(observations), 1))


@pytest.mark.parametrize("pace", [1.0, 0.01])
def test_observations_that_always_change_slowly_are_no_stays(pace):
    evaluation = vf.evaluate(wandering(pace), policy=mostly_up, discount=0.95, features="polynomial:degree=2")
    assert check_of(evaluation).outcome == "pass"
    assert check_of(evaluation).statistic < MAX_STAY_SHARE / 2


def stays_in_plain_loops(fit, weight):
    """Steps and share, segment by segment."""
    log, rows = fit.log, fit.log.observations.reshape(len(fit.log.observations), -1).astype(float)
    rows = rows / rows[log.now].std(axis=0)
    found, initial = None, None
    for steps in range(1, 100):
        totals, segments = {}, []
        for t in range(len(log)):
            last = max(s for s in range(len(log)) if log.episode[s] == log.episode[t])
            end = min(t + steps - 1, last)
            if end < t + steps - 1 and not log.terminated[last]:
                continue
            value = weight[t] * np.prod(fit.ratios[t + 1 : end + 1])
            goes = end == t + steps - 1 and log.next[end] >= 0
            changes = [np.abs(rows[log.next[s]] - rows[log.now[t]]).max() for s in range(t, end + 1) if goes]
            segments.append((value, max(changes) if goes else np.inf))
            totals[log.episode[t]] = totals.get(log.episode[t], 0.0) + value
        sums = np.array(list(totals.values()))
        effective = sums.sum() ** 2 / (sums**2).sum() if sums.any() else 0.0
        initial = effective if initial is None else initial
        if 2 * effective < initial or not effective:
            return found
        typical = np.median([change for _, change in segments if change < np.inf])
        still = sum(value for value, change in segments if change < 0.2 * typical)
        weights = np.array([(value, change < np.inf) for value, change in segments])
        found = steps, still / weights[:, 0].sum()
        if fit.discount**steps * weights.prod(axis=1).sum() <= MAX_STAY_SHARE * weights[:, 0].sum():
            return found
    return found


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_stays_are_those_of_plain_loops(values):
    log = wandering(0.9, 12, 12)
    fit = fit_of(log, policy=mostly_up, values=values, discount=0.9, features="polynomial")
    weight = np.random.default_rng(1).random(len(log))
    steps, share = stays_in_plain_loops(fit, weight)
    assert followed_stays(fit, weight) == (steps, pytest.approx(share, abs=1e-12))
    assert steps > 1


def test_stays_of_episodes_that_end_are_those_of_plain_loops():
    fit = fit_of(flights(0.4, 30), policy=mostly_quiet, discount=0.9, features="polynomial")
    on_ground = fit.log.observations[fit.log.now, 0] == 0
    weight = np.random.default_rng(1).random(len(fit.log)) * on_ground
    steps, share = stays_in_plain_loops(fit, weight)
    assert followed_stays(fit, weight) == (steps, pytest.approx(share, abs=1e-12))
    assert 0.05 < share < 1


def test_a_table_whose_states_lead_back_to_themselves_has_no_such_check():
    rng = np.random.default_rng(0)
    state, action = rng.integers(5, size=(100, 20)), rng.integers(2, size=(100, 20))
    log = vf.Transitions.from_arrays(
        state.ravel(), rng.normal(size=2000), episode=np.repeat(np.arange(100), 20), action=action.ravel(),
        truncated=np.tile(np.arange(20) == 19, 100), next_observation=state.ravel(), behaviour_prob=np.full(2000, 0.5),
    )  # fmt: skip
    assert check_of(vf.evaluate(log, policy=mostly_up, discount=0.9)) is None


def test_without_probabilities_and_on_policy_there_is_no_such_check():
    log = wandering(1.0)
    assert check_of(vf.evaluate(log, discount=0.9, features="polynomial")) is None
    unknown = replace(log, behaviour_prob=None)
    settings = {"policy": mostly_up, "values": "state-action", "discount": 0.9, "features": "polynomial"}
    assert check_of(vf.evaluate(log, **settings)) is not None
    assert check_of(vf.evaluate(unknown, **settings)) is None
