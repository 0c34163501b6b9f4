"""
Choosing features
=================

Too few features cannot express the value, too many follow the noise. ``vf.select`` fits each candidate without some
of the episodes, measures its error on them, and evaluates the choice on episodes that the choice has not seen.

The log is simulated: a number drifts at random around 0, and the reward is a wave of it plus much noise. The truth is
known from the equations.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

EPISODES, STEPS, DISCOUNT = 200, 20, 0.9

rng = np.random.default_rng(0)
x = np.empty((EPISODES, STEPS + 1))
x[:, 0] = rng.uniform(-2, 2, EPISODES)
for step in range(STEPS):
    x[:, step + 1] = 0.8 * x[:, step] + 0.5 * rng.standard_normal(EPISODES)
log = vf.load(
    {
        "episode": np.repeat(np.arange(EPISODES), STEPS),
        "obs": x[:, :-1].ravel(),
        "next_obs": x[:, 1:].ravel(),
        "reward": (np.sin(3 * x[:, :-1]) + rng.standard_normal((EPISODES, STEPS))).ravel(),
        "truncated": np.tile(np.arange(STEPS) == STEPS - 1, EPISODES),
    }
)

# %%
# Candidates are settings of ``vf.evaluate``. The episodes are cut into halves: each half chooses for the other one.
ORDERS = 1, 2, 3, 4, 6, 8, 12, 16
found = vf.select(log, {"features": [f"fourier:order={order}" for order in ORDERS]}, discount=DISCOUNT)
print(found.policy_value)
print("chosen:", [row["settings"]["features"] for row in found.table if row["chosen"]])
print("verdict:", found.verdict.level, *found.verdict.reasons)

# %%
# The truth: after t steps the number is normal with a known mean and variance, and the mean of a sine of a normal
# number is known.


def true_value(start):
    t = np.arange(200)[:, None]
    mean, variance = 0.8**t * start, 0.25 * (1 - 0.64**t) / 0.36
    return np.sum(DISCOUNT**t * np.sin(3 * mean) * np.exp(-4.5 * variance), axis=0)


# %%
# Left: the held-out error falls until the features can express the wave. (It can be negative, because products of an
# episode with itself are left out.) Right: order 1 misses the wave, order 64 follows the noise, and the chosen features
# come close to the truth.
#
# Candidates with nearly as many weights as a half has episodes have criteria that say nothing: with order 64 the
# standard error is in the hundreds or thousands. Such candidates come last. ``found.table`` has the standard errors.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for half, colour in [(0, "#0072B2"), (1, "#E69F00")]:
    rows = found.table[half * len(ORDERS) : (half + 1) * len(ORDERS)]
    criterion = [row["criterion"] for row in rows]
    errors = [row["standard_error"] for row in rows]
    shifted = np.array(ORDERS) * (1.03 if half else 0.97)  # so that the bars do not hide each other
    left.errorbar(shifted, criterion, errors, fmt="o-", color=colour, label=f"half {half + 1}", capsize=2)
    best = [row["chosen"] for row in rows].index(True)
    left.plot(shifted[best], criterion[best], "o", color=colour, markersize=13, markerfacecolor="none")
left.set(xscale="log", xlabel="order of the Fourier features", ylabel="held-out error")
left.set_xticks(ORDERS, ORDERS)
left.minorticks_off()
left.legend(frameon=False)

grid = np.linspace(-2, 2, 200)
for order, colour in [(1, "#E69F00"), (64, "#999999")]:
    values = vf.evaluate(log, features=f"fourier:order={order}", discount=DISCOUNT).value(grid[:, None])
    right.plot(grid, values, color=colour, label=f"order {order}", linewidth=1)
chosen = np.mean([evaluation.value(grid[:, None]) for evaluation in found.evaluations], axis=0)
right.plot(grid, chosen, color="#009E73", label="chosen, mean of the halves")
right.plot(grid, true_value(grid), "--", color="black", label="truth")
right.set(xlabel="observation", ylabel="value")
right.set_ylim(-2, 3.6)
right.legend(frameon=False, fontsize=9, loc="upper left")
plt.show()
