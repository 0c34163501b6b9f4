"""Evaluate a pandas table with other column names, unsorted rows, and episodes truncated by a time limit."""

import numpy as np
import pandas as pd

import valuefit as vf

rng = np.random.default_rng(0)
visits = []
for customer in range(200):
    mood, limit = rng.normal(), 15
    for day in range(limit):
        spent, after = max(mood, 0.0), 0.9 * mood + 0.4 * rng.normal()
        left = bool(rng.random() < 0.05)
        visits.append((customer, day, mood, after, spent, left, day == limit - 1 and not left))
        mood = after
        if left:
            break
frame = pd.DataFrame(visits, columns=["customer", "day", "mood", "mood_after", "spent", "left", "study_over"])

evaluation = vf.evaluate(
    frame.sample(frac=1, random_state=0),
    columns={
        "episode": "customer", "step": "day", "obs": "mood", "next_obs": "mood_after", "reward": "spent",
        "terminated": "left", "truncated": "study_over",
    },
    discount=0.95,
)  # fmt: skip
print(evaluation.policy_value)
for note in evaluation.notes:
    print("-", note)
grid = np.array([-1.0, 0.0, 1.0])
print("value of a customer in mood -1, 0, 1:", evaluation.value(grid).round(2))
