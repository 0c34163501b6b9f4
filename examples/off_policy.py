"""Evaluate a policy from the log of another policy by two methods, and compare with the true value."""

import numpy as np

import valuefit as vf

SLIP = 0.2  # probability that a step goes the other way

rng = np.random.default_rng(0)
rows = []
for episode in range(1000):
    state = 2
    while 0 <= state <= 4:
        action = int(rng.integers(2))  # the behaviour policy: left or right with equal probability
        after = state + (2 * action - 1) * (1 if rng.random() > SLIP else -1)
        rows.append((episode, state, action, float(after == 5), not 0 <= after <= 4, 0.5))
        state = after
names = "episode", "obs", "action", "reward", "terminated", "behaviour_prob"
log = vf.load({name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def mostly_right(states):
    """The target policy: right with probability 0.7."""
    return np.tile([0.3, 0.7], (len(states), 1))


by_ratios = vf.evaluate(log, policy=mostly_right, discount=0.95)
by_actions = vf.evaluate(log, policy=mostly_right, values="state-action", discount=0.95)
truth = vf.datasets.random_walk_value(target=0.7 * (1 - SLIP) + 0.3 * SLIP, discount=0.95)[2]
print("by ratios:             ", by_ratios.policy_value)
print("by state-action values:", by_actions.policy_value)
print(f"truth:                  {truth:.5g}")
size = by_ratios.policy_value.effective_sample_size
print(f"The effective sample size of the ratios is {size:.0f} of {len(log)} steps.")
print("values of left and right in the middle:", by_actions.value([2, 2], actions=[0, 1]).round(3))
