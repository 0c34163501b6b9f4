"""
The paper's Figures 2 and 3: Mountain Car
=========================================

The other two figures of Du et al. (2017) evaluate a Mountain Car policy from logs of 5,000 and 20,000 steps with 300
tile features. What they show: variance reduction converges linearly, a larger ridge makes it faster, and more data
mean fewer passes.

Here the steps are given, instead of tuned on a grid, each method runs once, and the panel without ridge is left out,
because it needs thousands of passes. ``valuefit reproduce mountain-car-5000`` and ``mountain-car-20000`` run
everything.
"""

import matplotlib.pyplot as plt

from valuefit.paper.definition import METHODS, load_experiment
from valuefit.paper.experiment import Job, run_job

# The steps of theta and w, in the units of the paper's grid.
STEPS = {
    "ridge = 0.01 L": {"pdbg": (3e5, 1.0), "gtd2": (60, 0.1), "svrg": (150, 0.1), "saga": (150, 0.12)},
    "ridge = L": {"pdbg": (3e4, 1.0), "gtd2": (1, 0.1), "svrg": (20, 0.1), "saga": (20, 0.12)},
}
PASSES = 100

# %%
# A job is one run of one method on one panel of an experiment.
figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained", sharey=True, sharex=True)
for row, name in enumerate(["mountain-car-5000", "mountain-car-20000"]):
    experiment = load_experiment(name)
    for axis, panel in zip(axes[row], experiment.panels[1:], strict=True):
        for method, (step_theta, step_w) in STEPS[panel.label].items():
            run = run_job(Job(panel, method, step_theta, step_w, PASSES, seed=1))
            label, colour, dashes = METHODS[method]
            axis.semilogy(run["passes"], run["gap"], dashes, color=colour, label=label)
            print(f"n = {panel.source['steps']:6}, {panel.label:14} {label:5} gap {run['gap'][-1]:.1e}")
        axis.set_title(f"n = {panel.source['steps']:,}, {panel.label}", fontsize=10)
        axis.set_ylim(1e-9, 3)
        axis.grid(alpha=0.3)
for axis in axes[1]:
    axis.set_xlabel("passes over the log")
for axis in axes[:, 0]:
    axis.set_ylabel("gap")
axes[0, 0].legend(frameon=False)
plt.show()

# %%
# From left to right the ridge is a hundred times larger; from top to bottom the log is four times longer. Both make
# SVRG and SAGA faster. Their straight lines have two slopes: a few directions with little data converge slowly. GTD2
# stalls at the noise of its single steps, and PDBG makes only one step in a pass.
