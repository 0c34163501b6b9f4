"""
A recommender's log with propensities
=====================================

A shop recommends one of six items to each visitor and logs whether it was clicked, with the probability that the
item had (its *propensity*). How many clicks would a new rule have got? Such a log is a bandit: each episode has
one step. The log is simulated, so the truth is known.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

VISITORS, ITEMS = 20_000, 6
rng = np.random.default_rng(0)
taste = rng.standard_normal((ITEMS, 2))


def click_probability(visitors):
    """(visitors, items)"""
    return 1 / (1 + np.exp(3 - visitors @ taste.T))


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def old_rule(visitors):
    """What the shop does: it favours items 0 and 1, whoever comes."""
    return softmax(np.tile([1.5, 1.0, 0.0, 0.0, -0.5, -0.5], (len(visitors), 1)))


def new_rule(visitors):
    """What it might do: items near the visitor's taste."""
    return softmax(1.0 * visitors @ taste.T)


# %%
# The log: a visitor is described by two numbers, and ``behaviour_prob`` is the propensity of the item that was shown.
visitors = rng.standard_normal((VISITORS, 2))
propensity = old_rule(visitors)
shown = (rng.random((VISITORS, 1)) > propensity.cumsum(axis=1)).sum(axis=1)
clicked = rng.random(VISITORS) < click_probability(visitors)[np.arange(VISITORS), shown]
log = vf.load(
    {
        "obs": visitors,
        "action": shown,
        "reward": clicked.astype(float),
        "behaviour_prob": propensity[np.arange(VISITORS), shown],
        "episode": np.arange(VISITORS),
        "terminated": np.ones(VISITORS, bool),
    }
)

# %%
# Ratios of the new and the old probabilities weight the visitors. The discount does not matter, as each episode ends
# after one step.
evaluation = vf.evaluate(log, policy=new_rule, features="polynomial:degree=3", discount=0.9)
print(evaluation.policy_value)
print("verdict:", evaluation.verdict.level)

# %%
# The second route needs no propensities: it fits the click rate of each item and averages it over the new rule.
by_items = vf.evaluate(log, policy=new_rule, features="polynomial:degree=3", values="state-action", discount=0.9)
print(by_items.policy_value)
print("verdict:", by_items.verdict.level)

# %%
# The click rate of the log is that of the old rule. All five estimates of the new rule's rate contain the truth in
# their intervals. Plain importance sampling has the longest interval; what is fitted makes it shorter.
many = rng.standard_normal((1_000_000, 2))
truth = np.mean(np.sum(new_rule(many) * click_probability(many), axis=1))
estimates = [("click rate of the log (old rule)", clicked.mean(), np.sqrt(clicked.var() / VISITORS))]
estimates += [
    (check.name, check.estimate, check.standard_error)
    for check in evaluation.cross_checks
    if check.name != "state-action values"
]
for name, value in [("valuefit, by ratios", evaluation), ("valuefit, by items", by_items)]:
    estimates.append((name, value.policy_value.estimate, value.policy_value.standard_error))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=[1.5, 1])
for place, (_, estimate, error) in enumerate(estimates):
    colour = "#999999" if place == 0 else "#0072B2"
    left.errorbar(estimate, place, xerr=1.96 * error, fmt="o", color=colour, capsize=3)
left.axvline(truth, color="black", linestyle="--", label="truth of the new rule")
left.set_yticks(range(len(estimates)), [row[0] for row in estimates])
left.set_ylim(len(estimates) - 0.5, -0.5)
left.set_xlabel("click rate, 95% interval")
left.legend(frameon=False, loc="lower left")

ratios = new_rule(visitors)[np.arange(VISITORS), shown] / propensity[np.arange(VISITORS), shown]
right.hist(ratios, bins=np.geomspace(0.01, 30, 41), color="#0072B2")
right.set(xscale="log", xlabel="ratio of new to old probability", ylabel="visitors")
size = evaluation.policy_value.effective_sample_size
right.set_title(f"effective sample: {size:,.0f} of {VISITORS:,}", fontsize=10)
plt.show()
