"""
A clinical log
==============

Hospital records differ from textbook logs: stays have all lengths, patients are lost to follow-up, nobody wrote down
the probability of a treatment, and some treatments are rare. **The patients on this page are simulated.** They
show which questions such a log can answer, not anything about medicine.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

PATIENTS, MAX_DAYS, DISCOUNT = 1000, 30, 0.97
TREATMENTS = "none", "standard", "intensive"
EFFECT = np.array([0.10, -0.25, -0.55])  # on the severity of the next day
BURDEN = np.array([0.0, 0.1, 0.6])  # of a day of treatment

# %%
# A patient has a severity between 0 and 4. Each day costs the severity and the burden of the treatment; below 0.5 the
# patient goes home, which is worth 10. One in thirty a day is lost to follow-up: that is ``truncated``, for their
# life goes on. Doctors treat the worse cases more, and give the intensive treatment on one day in a thousand.


def doctors(severity):
    standard = np.clip(0.2 + 0.2 * severity, 0, 0.9)
    return np.column_stack([0.999 - standard, standard, np.full(len(severity), 0.001)])


def simulate(policy, patients, rng, lost=1 / 30, days=MAX_DAYS):
    """Rows of (patient, severity, treatment, reward, next severity, home, lost)."""
    rows, patient = [], np.arange(patients)
    severity = rng.uniform(1.0, 3.5, patients)
    for day in range(days):
        chances = policy(severity).cumsum(axis=1)
        treatment = np.minimum((rng.random((len(severity), 1)) > chances).sum(axis=1), 2)
        after = np.clip(severity + EFFECT[treatment] + 0.3 * rng.standard_normal(len(severity)), 0, 4)
        home = after < 0.5
        gone = ~home & ((rng.random(len(severity)) < lost) | (day == days - 1))
        reward = 10.0 * home - severity - BURDEN[treatment]
        rows.append(np.column_stack([patient, severity, treatment, reward, after, home, gone]))
        stays = ~home & ~gone
        patient, severity = patient[stays], after[stays]
    return np.concatenate(rows)


rows = simulate(doctors, PATIENTS, np.random.default_rng(0))
patient, severity, treatment, reward, after, home, gone = rows[np.argsort(rows[:, 0], kind="stable")].T
log = vf.load(
    {
        "episode": patient.astype(int),
        "obs": severity,
        "action": treatment.astype(int),
        "reward": reward,
        "next_obs": after,
        "terminated": home.astype(bool),
        "truncated": gone.astype(bool),
    }
)
lengths = np.bincount(log.episode)
print(f"{len(log)} days of {PATIENTS} patients, who stay {lengths.min()} to {lengths.max()} days")
print({name: int(np.sum(treatment == number)) for number, name in enumerate(TREATMENTS)})

# %%
# Two questions
# -------------
# What if everybody had the standard treatment on nine days of ten? And what if the intensive one were used whenever the
# severity is above 2? Without propensities there are no ratios, but the values of states and actions need none.


def more_standard(severity):
    return np.tile([0.1, 0.9, 0.0], (len(severity), 1))


def often_intensive(severity):
    severe = np.reshape(severity, (-1, 1)) > 2
    return np.where(severe, [0.0, 0.1, 0.9], [0.1, 0.9, 0.0])


def title(policy):
    return policy.__name__.replace("_", " ")


evaluations = {
    policy: vf.evaluate(log, policy=policy, values="state-action", features="polynomial:degree=2", discount=DISCOUNT)
    for policy in (more_standard, often_intensive)
}
for policy, evaluation in evaluations.items():
    print(f"{title(policy)}: {evaluation.policy_value}")
    print(f"verdict: {evaluation.verdict.level}", *evaluation.verdict.reasons, sep="\n- ")

# %%
# The first question has an answer. For the second the log has too few days with the intensive treatment: the interval
# is useless, and the checks say why. The crosses are the truth, from 20,000 simulated patients who are followed for
# 300 days.


def true_value(policy):
    found = simulate(policy, 20_000, np.random.default_rng(1), lost=0, days=300)
    order = np.argsort(found[:, 0], kind="stable")
    number, reward = found[order, 0].astype(int), found[order, 3]
    first = np.r_[0, np.flatnonzero(np.diff(number)) + 1]
    day = np.arange(len(number)) - first[number]
    return np.sum(DISCOUNT**day * reward) / 20_000


COLOURS = {"sound": "#009E73", "caution": "#E69F00", "do not use": "#D55E00"}
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", width_ratios=[1, 1, 1.4])
axes[0].hist(lengths, bins=np.arange(0.5, MAX_DAYS + 1), color="#0072B2")
axes[0].set(xlabel="days in the log", ylabel="patients")
taken = np.bincount(log.action, minlength=3) / len(log)
wanted = often_intensive(log.observations[log.now]).mean(axis=0)
axes[1].bar(np.arange(3) - 0.2, taken, 0.4, label="in the log", color="#0072B2")
axes[1].bar(np.arange(3) + 0.2, wanted, 0.4, label="often intensive", color="#E69F00")
axes[1].set_xticks(range(3), TREATMENTS)
axes[1].set_ylabel("share of the days")
axes[1].set_ylim(0, 0.9)
axes[1].legend(frameon=False)
for place, (policy, evaluation) in enumerate(evaluations.items()):
    value, colour = evaluation.policy_value, COLOURS[evaluation.verdict.level]
    axes[2].plot(value.interval, [place, place], color=colour, linewidth=3)
    axes[2].plot(value.estimate, place, "o", color=colour)
    axes[2].plot(true_value(policy), place, "x", color="black", markersize=8, zorder=3)
    axes[2].text(
        value.estimate, place - 0.12, f"{title(policy)}: {evaluation.verdict.level}", color=colour, ha="center"
    )
axes[2].set(xlabel="value of a patient, 95% interval", yticks=[], ylim=(1.4, -0.4))
plt.show()
