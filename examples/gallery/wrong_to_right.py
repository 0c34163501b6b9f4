"""
From a wrong answer to a right one
==================================

The same log gives three answers. The checks say why the first two are wrong, and what to change.

The log is simulated, so the truth is known: 300 customers are observed for 20 days each. The mood of a customer
drifts back to 0, the spending of a day is the square of the mood plus noise, and a value is the expected discounted
spending from now on, far beyond the 20 days.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

CUSTOMERS, DAYS, DISCOUNT, MEMORY, NOISE = 300, 20, 0.95, 0.9, 0.4

rng = np.random.default_rng(0)
mood = np.empty((CUSTOMERS, DAYS + 1))
mood[:, 0] = rng.normal(2.0, 0.3, CUSTOMERS)
for day in range(DAYS):
    mood[:, day + 1] = MEMORY * mood[:, day] + NOISE * rng.standard_normal(CUSTOMERS)
spending = mood[:, :-1] ** 2 + rng.standard_normal((CUSTOMERS, DAYS))

# %%
# The truth is a geometric sum, because the mean square of the mood after t days is known.
days = np.arange(2000)
start, limit = 2.0**2 + 0.3**2, NOISE**2 / (1 - MEMORY**2)  # mean square of the mood on the first day, and at last
truth = np.sum(DISCOUNT**days * (limit + MEMORY ** (2 * days) * (start - limit)))
print(f"truth {truth:.2f}")

# %%
# First attempt
# -------------
# The export has a column ``done`` that is true on the last day, so it goes into ``terminated``: as if every customer
# had left for ever on day 20. The features are a constant and the mood itself.
last_day = np.tile(np.arange(DAYS) == DAYS - 1, CUSTOMERS)
columns = {
    "episode": np.repeat(np.arange(CUSTOMERS), DAYS),
    "obs": mood[:, :-1].ravel(),
    "next_obs": mood[:, 1:].ravel(),
    "reward": spending.ravel(),
}


def mood_itself(observations):
    return np.column_stack([np.ones(len(observations)), observations])


def judge(log, features):
    """Evaluate, and print the answer, the verdict and its reasons."""
    evaluation = vf.evaluate(log, features=features, discount=DISCOUNT)
    print(evaluation.policy_value, f"verdict: {evaluation.verdict.level}", *evaluation.verdict.reasons, sep="\n- ")
    return evaluation


first = judge({**columns, "terminated": last_day}, mood_itself)

# %%
# Second attempt
# --------------
# Nobody left on day 20: the study ended. That is ``truncated``, and what comes after the last day is then estimated.
second = judge({**columns, "truncated": last_day}, mood_itself)

# %%
# Third attempt
# -------------
# What is left is a matter of features: a straight line cannot follow a value that rises on both sides of mood 0.
# Polynomials of degree 2 add the square of the mood.
third = judge({**columns, "truncated": last_day}, "polynomial:degree=2")

# %%
# The picture
# -----------
# Only the third interval contains the truth. The first two are just as narrow, because an interval does not cover the
# error of a wrong column or of features that cannot express the value. The verdict warned of both.
COLOURS = {"sound": "#009E73", "caution": "#E69F00", "do not use": "#D55E00"}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for place, evaluation in enumerate([first, second, third]):
    value, level = evaluation.policy_value, evaluation.verdict.level
    low, high = value.interval
    left.plot([low, high], [place, place], color=COLOURS[level], linewidth=3)
    left.plot(value.estimate, place, "o", color=COLOURS[level])
    left.text(value.estimate, place - 0.16, level, color=COLOURS[level], ha="center")
left.axvline(truth, color="black", linestyle="--")
left.text(truth, 2.35, "truth ", ha="right")
left.set(xlabel="policy value", ylim=(2.6, -0.5))
left.set_yticks(range(3), ["done as terminated", "done as truncated", "and degree 2"])

grid = np.linspace(-1.5, 2.5, 100)
for evaluation, name, colour in [(second, "straight line", "#D55E00"), (third, "degree 2", "#009E73")]:
    right.plot(grid, evaluation.value(grid[:, None]), color=colour, label=name)
exact = grid**2 / (1 - DISCOUNT * MEMORY**2) + limit * (1 / (1 - DISCOUNT) - 1 / (1 - DISCOUNT * MEMORY**2))
right.plot(grid, exact, "--", color="black", label="truth")
right.set(xlabel="mood", ylabel="value")
right.legend(frameon=False)
plt.show()
