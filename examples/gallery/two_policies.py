"""
Two policies compared
=====================

Which of two policies is better can be clear although their intervals overlap. Both values come from the same
episodes and share most of their error; ``vf.compare`` subtracts the errors episode by episode before it squares them.

The log is simulated: a machine wears out in nine steps. Each day somebody either runs it, which earns less the more
it is worn and breaks it in the end, or services it, which costs 2 and makes it new.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

STATES, RUN, SERVICE, DISCOUNT = 10, 0, 1, 0.95
EARNED = np.array([3, 3, 3, 2.5, 2, 1.5, 1, 0.5, 0, -4])  # by a day of running, by wear
SERVICE_COST = 2.0


def simulate(policy, machines, days, rng):
    """Columns of a log; policy: probability of a service at each wear."""
    wear, rows = rng.integers(0, 4, machines), []
    for _ in range(days):
        action = (rng.random(machines) < policy[wear]).astype(int)
        reward = np.where(action == SERVICE, -SERVICE_COST, EARNED[wear]) + rng.normal(0, 1, machines)
        after = np.where(action == SERVICE, 0, np.minimum(wear + rng.integers(0, 3, machines), STATES - 1))
        rows.append((wear, action, reward, after))
        wear = after
    wear, action, reward, after = (np.array(column).T.ravel() for column in zip(*rows, strict=True))
    return {
        "episode": np.repeat(np.arange(machines), days),
        "obs": wear,
        "action": action,
        "reward": reward,
        "next_obs": after,
        "truncated": np.tile(np.arange(days) == days - 1, machines),
        "behaviour_prob": np.where(action == SERVICE, policy[wear], 1 - policy[wear]),
    }


log = vf.load(simulate(np.full(STATES, 0.3), 200, 60, np.random.default_rng(0)))

# %%
# The candidates: service from wear 5, 6 or 7 on, with an exception in one case of twenty. A policy is a table of
# probabilities with a row for each state and a column for each action.
LIMITS = 5, 6, 7


def service_from(limit):
    late = np.arange(STATES) >= limit
    return np.column_stack([np.where(late, 0.05, 0.95), np.where(late, 0.95, 0.05)])


evaluations = {
    f"service from wear {limit}": vf.evaluate(log, policy=service_from(limit), values="state-action", discount=DISCOUNT)
    for limit in LIMITS
}
for name, evaluation in evaluations.items():
    print(f"{name}: {evaluation.policy_value}, verdict: {evaluation.verdict.level}")

# %%
# All pairs at once; the intervals and p-values hold for the three of them together.
compared = vf.compare(evaluations)
for pair in compared.pairs:
    print(pair)

# %%
# The truth, from the equations of the simulation:


def exact_value(policy):
    moves = np.zeros((2, STATES, STATES))
    for wear in range(STATES):
        moves[SERVICE, wear, 0] = 1
        for more in range(3):
            moves[RUN, wear, min(wear + more, STATES - 1)] += 1 / 3
    chain = np.einsum("sa,ast->st", policy, moves)
    reward = policy @ [0, -SERVICE_COST] + policy[:, RUN] * EARNED
    return np.linalg.solve(np.eye(STATES) - DISCOUNT * chain, reward)


first_wear = log.observations[log.now[log.begins]]
truth = {f"service from wear {limit}": exact_value(service_from(limit))[first_wear].mean() for limit in LIMITS}

# %%
# The values of the first two policies have overlapping intervals (left). The interval of their difference is two
# thirds as long and does not contain 0 (right). The crosses are the truth: on the left all three estimates miss it in
# the same direction, which is the error that they share.
figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
values = [(name, e.policy_value.estimate, e.policy_value.interval, truth[name]) for name, e in evaluations.items()]
pairs = [
    (" minus\n".join(pair.names), pair.estimate, pair.interval, truth[pair.names[0]] - truth[pair.names[1]])
    for pair in compared.pairs
]
for axis, rows, colour in [(axes[0], values, "#0072B2"), (axes[1], pairs, "#D55E00")]:
    for place, (_, estimate, interval, exact) in enumerate(rows):
        axis.plot(interval, [place, place], color=colour, linewidth=3)
        axis.plot(estimate, place, "o", color=colour, markersize=8)
        axis.plot(exact, place, "x", color="black", markersize=8, zorder=3)
    axis.set_yticks(range(len(rows)), [row[0] for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)
axes[1].axvline(0, color="grey", linestyle="--")
axes[0].set_xlabel("value, 95% interval")
axes[1].set_xlabel("difference, simultaneous 95% intervals")
plt.show()
