"""The automatic features on a log of many columns of several types, few of which matter."""

import numpy as np
import pytest

import valuefit as vf

NUMBERS, RELEVANT, EPISODES = 50, 3, 300
DISCOUNT, SURVIVAL, MEMORY = 0.95, 0.95, 0.8  # MEMORY: of every number, and how likely a category stays the same
START = 1.5  # of the numbers that matter
WEATHER = {"dry": 0.0, "rain": -1.0, "snow": 2.0}  # text, with its part in the reward; episodes begin with the first
WARD = {7: 1.0, 3: 0.0, 11: 0.0, 20: -1.0}  # numbers that are declared as categories
WEEKEND = {False: 0.0, True: 0.5}


def sticky(rng, effects):
    """Categories of the steps of one episode: the first one, then the same as before or a random one."""
    names, now = list(effects), 0
    while True:
        yield names[now]
        now = now if rng.random() < MEMORY else int(rng.integers(len(names)))


def make_log(seed):
    """A dict of columns: 50 numbers, a category, text and two booleans; actions are random."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode in range(EPISODES):
        x = rng.standard_normal(NUMBERS)
        x[:RELEVANT] = START
        chains = zip(sticky(rng, WEATHER), sticky(rng, WARD), sticky(rng, WEEKEND), strict=False)
        for weather, ward, weekend in chains:
            action, ends = int(rng.integers(2)), bool(rng.random() > SURVIVAL)
            reward = x[0] + x[1] ** 2 / 2 + action * (1 + x[2]) + WEATHER[weather] + WARD[ward] + WEEKEND[weekend]
            noise = rng.standard_normal()
            rows.append((episode, *x, weather, ward, weekend, bool(rng.integers(2)), action, reward + noise, ends))
            if ends:
                break
            x = MEMORY * x + np.sqrt(1 - MEMORY**2) * rng.standard_normal(NUMBERS)
    numbers = [f"x{j}" for j in range(NUMBERS)]
    names = ["episode", *numbers, "weather", "ward", "weekend", "other", "action", "reward", "terminated"]
    table = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    columns = {"obs": [*numbers, "weather", "ward", "weekend", "other"], "categorical": ["ward"]}
    return vf.load({**table, "behaviour_prob": np.full(len(rows), 0.5)}, columns=columns)


def true_value(probability):
    """Of the policy that takes action 1 with this probability, whatever the state."""
    t = np.arange(2000)
    left = MEMORY**t  # of the start
    mean, variance = START * left, 1 - left**2
    reward = mean + (mean**2 + variance) / 2 + probability * (1 + mean)
    for effects in (WEATHER, WARD, WEEKEND):
        parts = list(effects.values())
        reward = reward + np.mean(parts) + (parts[0] - np.mean(parts)) * left
    return float(((DISCOUNT * SURVIVAL) ** t * reward).sum())


@pytest.mark.parametrize("probability", [0.5, 0.8])
def test_fifty_columns_of_which_three_matter_a_category_text_and_booleans(probability):
    log = make_log(0)
    assert log.observations.shape[1] == NUMBERS + len(WEATHER) + len(WARD) + 2
    policy = None if probability == 0.5 else lambda states: np.tile([1 - probability, probability], (len(states), 1))
    done = vf.evaluate(log, discount=DISCOUNT, policy=policy)
    value = done.policy_value
    error = value.estimate - true_value(probability)
    assert value.standard_error < 0.1 * abs(true_value(probability))  # precise enough to see a wrong value
    assert abs(error) <= 3 * value.standard_error + value.solver_error
