"""
Baird's star: why TD diverges
=============================

Seven states, eight features, all rewards 0: the value is 0 everywhere, and the features can express it. Yet
temporal-difference learning runs away from it as soon as the log comes from another policy.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

log = vf.datasets.baird_log(700, seed=0)
problem = vf.Problem(log, vf.datasets.baird_features, discount=0.9)
start = np.array([1.0, 1, 1, 1, 1, 1, 10, 1])  # the usual starting point
minimiser = np.zeros(8)

# %%
# TD follows the direction :math:`b - A\theta`, so on average its error is multiplied by :math:`I - \alpha A` in each
# step. It grows along an eigenvector of A whose eigenvalue has a negative real part, whatever the step
# :math:`\alpha`. On-policy there is none. Here, ratios of 7 and 0 reweight the log, and there is a pair of them. (One
# eigenvalue is 0 in both cases, because eight features describe seven states.)
A, b, C = problem.moments()
off_policy = np.linalg.eigvals(A)
same_rows = vf.Problem.from_rows(problem.phi.matrix, problem.now, problem.next, problem.reward, 0.9)
on_policy = np.linalg.eigvals(same_rows.moments().A)
print("real parts, on-policy: ", np.sort(on_policy.real).round(2) + 0.0)
print("real parts, off-policy:", np.sort(off_policy.real).round(2) + 0.0)

# %%
# GTD2, SVRG and SAGA minimise the MSPBE, the mean squared projected Bellman error. It is a convex function of theta,
# on-policy and off-policy alike. A smaller step than this one would only delay the divergence of TD.
solvers = {
    "TD": vf.solvers.FLSTDSA(step=0.005, decay=np.inf),
    "GTD2": "gtd2",
    "SVRG": "svrg",
    "SAGA": "saga",
}
results = {
    name: vf.solve(problem, solver, tol=1e-10, max_passes=80, init=start, reference=minimiser)
    for name, solver in solvers.items()
}
for name, result in results.items():
    print(f"{name:5} {result.status:10} after {result.passes:5.1f} passes, gap {result.history['gap'][-1]:.1e}")

# %%
# Left: the eigenvalues of A. Right: the distance to the minimum, in units of where it started.
COLOURS = {"TD": "#999999", "GTD2": "#E69F00", "SVRG": "#D55E00", "SAGA": "#009E73"}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.axvspan(-0.1, 0, color="#D55E00", alpha=0.12)
left.plot(on_policy.real, on_policy.imag, "o", color="#0072B2", label="all steps count alike", markerfacecolor="none")
left.plot(off_policy.real, off_policy.imag, "x", color="#D55E00", label="with ratios 7 and 0")
left.set(xlabel="real part", ylabel="imaginary part", title="eigenvalues of A", xlim=(-0.1, 0.7))
left.text(-0.075, 0, "TD diverges", color="#D55E00", rotation=90, va="center")
left.legend(frameon=False)
for name, result in results.items():
    right.semilogy(result.history["passes"], result.history["gap"], color=COLOURS[name], label=name)
right.set(xlabel="passes over the log", ylabel="gap", title="from the same start", ylim=(1e-12, 1e6))
right.legend(frameon=False)
right.grid(alpha=0.3)
plt.show()
