"""
A policy learned from its own log
=================================

Learning prefers the actions that did well in the log, by chance as well. If the learned policy is evaluated on the same
episodes, the estimate sees the same chance, and neither its interval nor its checks know of it. Here every reward is
noise, so that every policy is worth 0 and none is better than another. ``vf.split`` keeps episodes aside.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

LOGS, EPISODES, STEPS, ACTIONS, DISCOUNT = 12, 200, 20, 3, 0.9


def null_log(seed):
    """A log in which the actions move two numbers, and rewards depend on nothing."""
    rng = np.random.default_rng(seed)
    state, columns = rng.normal(size=(EPISODES, 2)), []
    for _ in range(STEPS):
        action = rng.integers(0, ACTIONS, EPISODES)
        after = (
            0.8 * state + 0.4 * np.column_stack([action - 1, np.zeros(EPISODES)]) + 0.5 * rng.normal(size=state.shape)
        )
        columns.append((state, action, rng.normal(size=EPISODES), after))
        state = after
    state, action, reward, after = (np.swapaxes(column, 0, 1) for column in map(np.array, zip(*columns, strict=True)))
    return vf.Transitions.from_arrays(
        state.reshape(-1, 2),
        reward.ravel(),
        action=action.ravel(),
        next_observation=after.reshape(-1, 2),
        truncated=np.tile(np.arange(STEPS) == STEPS - 1, EPISODES),
        behaviour_prob=np.full(EPISODES * STEPS, 1 / ACTIONS),
    )


# %%
# The policy is learned by LSTD-Q policy iteration: fit the values of the actions under the present policy, take the
# best action in each state, and repeat. A little ridge keeps the equations regular.
FEATURES = vf.features.Fourier(order=3)


def learn(log, iterations=10, ridge=1e-2):
    """The greedy policy after some iterations, as a function of observations."""
    phi = FEATURES.fit(log.observations).transform
    now, following = phi(log.observations[log.now]), phi(log.observations[log.next])
    one_hot, width = np.eye(ACTIONS)[log.action], now.shape[1]
    rows = (one_hot[:, :, None] * now[:, None, :]).reshape(len(log), -1)
    theta = np.zeros((ACTIONS, width))
    for _ in range(iterations):
        best = np.eye(ACTIONS)[np.argmax(following @ theta.T, axis=1)]
        expected = (best[:, :, None] * following[:, None, :]).reshape(len(log), -1)
        left = rows.T @ (rows - DISCOUNT * expected) / len(log) + ridge * np.eye(ACTIONS * width)
        theta = np.linalg.solve(left, rows.T @ log.reward / len(log)).reshape(ACTIONS, width)
    return lambda observations: np.eye(ACTIONS)[np.argmax(phi(observations) @ theta.T, axis=1)]


# %%
# Each policy is compared twice with the one that produced the log: on the episodes that it was learned from, and on
# others.
def gain(log, policy):
    """The value of the policy minus that of the logged one, and whether the checks call it sound."""
    settings = {"features": "fourier:order=3", "discount": DISCOUNT}
    learned = vf.evaluate(log, policy=policy, values="state-action", **settings)
    return vf.compare(learned, vf.evaluate(log, **settings)), learned.verdict.level == "sound"


gains = {"its own episodes": [], "held-out episodes": []}
for seed in range(LOGS):
    learning, judging = vf.split(null_log(seed), share=0.5)
    policy = learn(learning)
    gains["its own episodes"].append(gain(learning, policy))
    gains["held-out episodes"].append(gain(judging, policy))

for name, pairs in gains.items():
    better = [sound for difference, sound in pairs if difference.interval[0] > 0]
    mean = np.mean([difference.estimate for difference, _ in pairs])
    print(f"on {name}: mean gain {mean:.2f}, better in {len(better)} of {LOGS}, of which sound {sum(better)}")

# %%
# The picture
# -----------
# On their own episodes almost all policies look better than the logged one, although none is. On held-out episodes the
# intervals contain the truth, 0.
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True, sharey=True, layout="constrained")
for axis, (name, pairs) in zip(axes, gains.items(), strict=True):
    for place, (difference, _) in enumerate(pairs):
        low, high = difference.interval
        colour = "#D55E00" if low > 0 or high < 0 else "#0072B2"
        axis.plot([low, high], [place, place], color=colour, linewidth=3)
        axis.plot(difference.estimate, place, "o", color=colour)
    axis.axvline(0, color="black", linestyle="--")
    axis.set(title=f"on {name}", xlabel="learned policy - logged policy", yticks=[])
axes[0].set_ylabel("one policy for each log")
plt.show()
