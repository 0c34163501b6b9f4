"""
Reading the report
==================

``evaluation.report("report.html")`` writes one HTML page with everything in it. This example goes through its main
sections with the log that comes with valuefit: Mountain Car, 150 episodes, reward -1 for each step until the car is out
of the valley.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

log = vf.datasets.example_log()
evaluation = vf.evaluate(log, features="fourier:order=3", discount=0.99)
with tempfile.TemporaryDirectory() as folder:
    report = evaluation.report(Path(folder) / "report.html")
    print(f"{report.name}: {report.stat().st_size / 1000:.0f} kB, opens in any browser")

# %%
# 1. The answer and its verdict
# -----------------------------
# The verdict comes first. Read the reasons before the number: here the features are too coarse.
print(evaluation.policy_value)
print(f"verdict: {evaluation.verdict.level}", *evaluation.verdict.reasons, sep="\n- ")

# %%
# 2. Values, standard errors and TD errors
# ----------------------------------------
# *Values over the states* (left): every step costs 1, so no value can be above 0 or below -100. *Standard errors*
# (middle): they are large where the log has few steps, so the values there mean little. *TD errors* (right): reward +
# discount * next value - value. Their mean should be 0 at every value; a curve away from 0 shows what the features
# cannot express. With order 7 the curve is flatter.


def value_and_error(evaluation, position, velocity):
    """The values and their standard errors on a grid; NaN in cells without steps of the log."""
    points = np.stack(np.meshgrid(position, velocity), axis=-1).reshape(-1, 2)
    half_width = np.diff(evaluation.value_interval(points), axis=1)[:, 0] / 2
    visits, *_ = np.histogram2d(*log.observations[log.now].T, bins=[edges(position), edges(velocity)])
    shape, empty = (len(velocity), len(position)), visits.T == 0
    values, errors = evaluation.value(points).reshape(shape), half_width.reshape(shape) / 1.96
    return np.where(empty, np.nan, values), np.where(empty, np.nan, errors)


def edges(centres):
    step = centres[1] - centres[0]
    return np.append(centres - step / 2, centres[-1] + step / 2)


def mean_error_by_value(evaluation, bins=15):
    """Mean value and mean TD error of steps with similar values, and the standard error of the latter."""
    values, errors = evaluation.value(log.observations[log.now]), evaluation.td_errors()
    groups = np.array_split(np.argsort(values), bins)
    deviation = [errors[group].std() / np.sqrt(len(group)) for group in groups]
    return [values[group].mean() for group in groups], [errors[group].mean() for group in groups], deviation


better = vf.evaluate(log, features="fourier:order=7", discount=0.99)
position, velocity = np.linspace(-1.2, 0.5, 35), np.linspace(-0.07, 0.07, 29)
values, errors = value_and_error(evaluation, position, velocity)
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for axis, cells, title in [(axes[0], values, "value"), (axes[1], errors, "standard error")]:
    shown = axis.pcolormesh(position, velocity, cells, cmap="viridis" if title == "value" else "magma_r")
    figure.colorbar(shown, ax=axis)
    axis.set(title=title, xlabel="position", ylabel="velocity")
for one, name, colour in [(evaluation, "order 3", "#D55E00"), (better, "order 7", "#009E73")]:
    centre, mean, deviation = mean_error_by_value(one)
    axes[2].errorbar(centre, mean, deviation, fmt="o-", color=colour, label=name, markersize=4)
axes[2].axhline(0, color="black", linewidth=0.8)
axes[2].set(title="mean TD error", xlabel="value")
axes[2].legend(frameon=False)
plt.show()

# %%
# 3. The checks
# -------------
# Each check has a name, an outcome and a sentence. Those that did not pass are the reasons of the verdict.
for check in evaluation.checks:
    print(f"{check.outcome:5} {check.name}")

# %%
# With order 7 fewer reasons are left, and the value agrees with the mean return of the episodes.
print(better.policy_value)
print(f"verdict: {better.verdict.level}", *better.verdict.reasons, sep="\n- ")
