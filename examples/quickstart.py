"""Estimate the value of a policy from a log, with its interval."""

import numpy as np

import valuefit as vf

rng = np.random.default_rng(0)
rows = []
for episode in range(500):  # random walks on five states; reward 1 for leaving on the right
    state = 2
    while 0 <= state <= 4:
        after = state + int(rng.choice([-1, 1]))
        rows.append((episode, state, float(after == 5), not 0 <= after <= 4))
        state = after
episode, state, reward, ended = map(np.array, zip(*rows, strict=True))

log = {"episode": episode, "obs": state, "reward": reward, "terminated": ended}
evaluation = vf.evaluate(log, discount=0.95)
print(evaluation.summary())
print("\nThe exact value is 0.3491.")
