r"""
Variance reduction by hand
==========================

Exercises with solutions. You write the objective of policy evaluation and its saddle point in NumPy, see why stochastic
gradient descent stalls, repair it with SVRG and SAGA, and then solve the same problem with valuefit. About 90 minutes;
you need linear algebra, Python, and the idea of a stochastic gradient.

Each solution ends with assertions. To use this as a worksheet, delete the cells that begin with ``# Solution``, and
keep the assertions as tests. Du, Chen, Li, Xiao and Zhou (ICML 2017) is the paper behind it.
"""

import matplotlib.pyplot as plt
import numpy as np

import valuefit as vf

# %%
# The problem
# -----------
#
# A log has n steps. Step t has features :math:`\phi_t` of its state, features :math:`\phi_t'` of the next state, and a
# reward :math:`r_t`. With discount :math:`\gamma`, let
#
# .. math::
#
#     A = \frac1n \sum_t \phi_t (\phi_t - \gamma \phi_t')^\top, \quad
#     b = \frac1n \sum_t r_t \phi_t, \quad
#     C = \frac1n \sum_t \phi_t \phi_t^\top.
#
# The mean squared projected Bellman error (MSPBE) of the weights :math:`\theta` is
#
# .. math:: F(\theta) = \tfrac12 (A\theta - b)^\top C^{-1} (A\theta - b).
#
# We measure progress by the gap :math:`(F(\theta) - F(\theta^*)) / (F(0) - F(\theta^*))`, which starts at 1.
DISCOUNT = 0.9
mdp = vf.datasets.random_mdp(30, actions=3, features=5, seed=0)
table = np.column_stack([2 * mdp.features[:, :-1] - 1, np.ones(30)])  # centred features and a constant, by state
log = mdp.log(1000, seed=0)
phi, phi_next, reward = table[log.observations[log.now]], table[log.observations[log.next]], log.reward
n, d = phi.shape
print(n, "steps,", d, "features")

# %%
# Exercise 1: the objective
# -------------------------
#
# Compute A, b and C. Write F, find its minimiser :math:`\theta^*`, and compare with ``vf.Problem``, which takes the log
# and a function that gives the features of states.

# %%
# Solution
v = phi - DISCOUNT * phi_next
A, b, C = phi.T @ v / n, phi.T @ reward / n, phi.T @ phi / n


def F(theta):
    residual = A @ theta - b
    return 0.5 * residual @ np.linalg.solve(C, residual)


def gap(theta):
    return (F(theta) - F(theta_star)) / (F(np.zeros(d)) - F(theta_star))


theta_star = np.linalg.solve(A, b)  # A is square and regular, so the residual can be made 0

problem = vf.Problem(log, lambda state: table[state], discount=DISCOUNT)
some = np.arange(d) / d
assert np.isclose(F(some), problem.objective(some))
assert np.isclose(gap(np.zeros(d)), 1)
assert abs(gap(theta_star)) < 1e-12

# %%
# Exercise 2: the saddle point
# ----------------------------
#
# F is not a mean over steps, because of :math:`C^{-1}`, so a single step gives no unbiased gradient. The paper
# therefore introduces dual weights w:
#
# .. math:: L(\theta, w) = w^\top (b - A\theta) - \tfrac12 w^\top C w, \qquad F(\theta) = \max_w L(\theta, w).
#
# Verify the second equation numerically. The direction of a descent in :math:`\theta` and ascent in w is
# :math:`-B`, where
#
# .. math:: B(\theta, w) = \begin{pmatrix} -A^\top w \\ A\theta - b + C w \end{pmatrix}.
#
# It *is* a mean over steps, of :math:`B_t(\theta, w)`. Write ``B(z)`` and ``B_t(z, t)`` with
# :math:`z = (\theta, w)` as one vector, in O(d) operations for ``B_t``, and verify that B is the mean of the
# :math:`B_t`.


# %%
# Solution
def lagrangian(theta, w):
    return w @ (b - A @ theta) - 0.5 * w @ C @ w


def B(z):
    theta, w = z[:d], z[d:]
    return np.concatenate([-A.T @ w, A @ theta - b + C @ w])


def B_t(z, t):
    theta, w = z[:d], z[d:]
    along_phi = phi[t] @ w
    return np.concatenate([-along_phi * v[t], (v[t] @ theta - reward[t] + along_phi) * phi[t]])


best_w = np.linalg.solve(C, b - A @ some)
assert np.isclose(lagrangian(some, best_w), F(some))
assert lagrangian(some, best_w + 0.1) < F(some)

z_some, z_star = np.concatenate([some, best_w]), np.concatenate([theta_star, np.zeros(d)])
assert np.allclose(np.mean([B_t(z_some, t) for t in range(n)], axis=0), B(z_some))
assert np.allclose(B(z_star), 0)

# %%
# Exercise 3: stochastic gradients stall
# --------------------------------------
#
# Run :math:`z \leftarrow z - \alpha B_t(z)` with random t for 60 passes over the log (60 n steps). (With two separate
# steps this is the method GTD2.) Record the gap after each pass. Try smaller steps too: what do they cost?

# %%
# Solution
STEP, PASSES = 0.04, 60


def sgd(step, passes, seed=0):
    rng, z, gaps = np.random.default_rng(seed), np.zeros(2 * d), [1.0]
    for _ in range(passes):
        for t in rng.integers(n, size=n):
            z = z - step * B_t(z, t)
        gaps.append(gap(z[:d]))
    return z, gaps


z_sgd, gaps_sgd = sgd(STEP, PASSES)
_, gaps_small = sgd(STEP / 10, PASSES)
print(f"gap of SGD: {gaps_sgd[-1]:.1e}, with a tenth of the step: {gaps_small[-1]:.1e}")
assert min(gaps_sgd) > 1e-3
assert min(gaps_small) > 1e-3

# %%
# Exercise 4: the variance
# ------------------------
#
# At the solution B is 0, but its parts :math:`B_t` are not: the noise does not end there. Now keep a *snapshot*
# :math:`\tilde z` with its full :math:`B(\tilde z)`, and use
#
# .. math:: G_t(z) = B_t(z) - B_t(\tilde z) + B(\tilde z).
#
# 1. Why is the mean of :math:`G_t(z)` over t equal to :math:`B(z)`?
# 2. Measure the variance (mean squared distance from the mean) of :math:`B_t` and of :math:`G_t` at points that come
#    closer and closer to the solution, with a snapshot that is twice as far away. How does it depend on the distance?

# %%
# Solution
#
# (1) The mean of B_t(snapshot) is B(snapshot), which is added again. (2) B_t is affine in z, so G_t - B is linear in
# z - snapshot: half the distance gives a quarter of the variance.


def variance(direction):
    parts = np.array([direction(t) for t in range(n)])
    return np.mean(np.sum((parts - parts.mean(axis=0)) ** 2, axis=1))


def plain_and_reduced(distance):
    z, snapshot = z_star + distance * np.ones(2 * d), z_star + 2 * distance * np.ones(2 * d)
    return variance(lambda t: B_t(z, t)), variance(lambda t: B_t(z, t) - B_t(snapshot, t) + B(snapshot))


distances = 0.5 ** np.arange(8)
plain, reduced = np.array([plain_and_reduced(distance) for distance in distances]).T
assert plain[-1] > 0.5 * variance(lambda t: B_t(z_star, t)) > 0
assert np.allclose(reduced[:-1] / reduced[1:], 4)

# %%
# Exercise 5: SVRG
# ----------------
#
# Take a snapshot, do 2n steps with :math:`G_t` instead of :math:`B_t`, take the next snapshot at the point reached,
# and so on. Use the same step as before. Count honestly: a full B costs a pass, and a step two evaluations of
# :math:`B_t`. How many passes does a gap of 1e-6 take?


# %%
# Solution
def svrg(step, snapshots, seed=0):
    """Passes and gaps after each snapshot; a snapshot costs a pass, and 2n steps with two evaluations cost four."""
    rng, z, passes, gaps = np.random.default_rng(seed), np.zeros(2 * d), [0.0], [1.0]
    for _ in range(snapshots):
        snapshot, full = z, B(z)
        for t in rng.integers(n, size=2 * n):
            z = z - step * (B_t(z, t) - B_t(snapshot, t) + full)
        passes.append(passes[-1] + 5)
        gaps.append(gap(z[:d]))
    return z, passes, gaps


z_svrg, passes_svrg, gaps_svrg = svrg(STEP, PASSES // 5)
print(f"gap of SVRG: {gaps_svrg[-1]:.1e}")
assert gaps_svrg[-1] < 1e-6 < min(gaps_sgd)
assert np.allclose(z_svrg[:d], theta_star, atol=1e-3)

# %%
# Exercise 6: SAGA
# ----------------
#
# SAGA has no snapshots. It keeps a table of the last :math:`B_t` computed for each step t, and the mean of the table:
#
# .. math:: z \leftarrow z - \alpha \, (B_t(z) - \text{table}_t + \text{mean of the table}),
#
# after which :math:`\text{table}_t` becomes :math:`B_t(z)`, with the z from before the step. Update the mean in O(d).
# A pass is now n steps. (How could the table be stored in O(n) numbers?)


# %%
# Solution
#
# B_t is a combination of v_t and phi_t with two scalar factors, so two numbers for each step are enough.
def saga(step, passes, seed=0):
    rng, z, gaps = np.random.default_rng(seed), np.zeros(2 * d), [1.0]
    stored = np.array([B_t(z, t) for t in range(n)])
    mean = stored.mean(axis=0)
    for _ in range(passes):
        for t in rng.integers(n, size=n):
            new = B_t(z, t)
            z = z - step * (new - stored[t] + mean)
            mean = mean + (new - stored[t]) / n
            stored[t] = new
        gaps.append(gap(z[:d]))
    return z, gaps


z_saga, gaps_saga = saga(STEP, PASSES)
print(f"gap of SAGA: {gaps_saga[-1]:.1e}")
assert gaps_saga[-1] < 1e-6

# %%
# The picture: SGD stalls at a height that depends on its step. The variance of SVRG's and SAGA's steps vanishes at the
# solution, so they go on along straight lines.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.semilogy(gaps_sgd, color="#999999", label="SGD")
left.semilogy(gaps_small, ":", color="#999999", label="SGD, a tenth of the step")
left.semilogy(passes_svrg, gaps_svrg, "o-", color="#D55E00", label="SVRG", markersize=4)
left.semilogy(gaps_saga, color="#009E73", label="SAGA")
left.axhline(1e-6, color="black", linewidth=0.8, linestyle="--")
left.set(xlabel="passes over the log", ylabel="gap")
left.legend(frameon=False)
right.loglog(distances, plain, "o-", color="#999999", label="$B_t$")
right.loglog(distances, reduced, "o-", color="#D55E00", label="$G_t$")
right.set(xlabel="distance to the solution", ylabel="variance")
right.legend(frameon=False)
plt.show()

# %%
# Exercise 7: the same with valuefit
# ----------------------------------
#
# Solve ``problem`` with ``vf.solve``: first with ``vf.solvers.SVRG`` and ``vf.solvers.SAGA`` and your own steps, then
# with ``"svrg"``, ``"saga"`` and ``"auto"``, which need no steps. Compare the passes, and the weights with
# :math:`\theta^*`. Then evaluate the policy with ``vf.evaluate``.

# %%
# Solution
solvers = {
    "SVRG, own steps": vf.solvers.SVRG(step_theta=STEP, step_w=STEP),
    "SAGA, own steps": vf.solvers.SAGA(step_theta=STEP, step_w=STEP),
    "svrg": "svrg",
    "saga": "saga",
    "auto": "auto",
}
for name, solver in solvers.items():
    result = vf.solve(problem, solver, tol=1e-6, max_passes=PASSES, reference=theta_star)
    print(f"{name:16} {result.status} after {result.passes:4.1f} passes, gap {gap(result.theta):.1e}")
    assert result.status == "converged"
    assert gap(result.theta) <= 1e-6

evaluation = vf.evaluate(log, features=lambda state: table[state], discount=DISCOUNT)
print(evaluation.policy_value)
assert np.allclose(evaluation.result.theta, theta_star, atol=1e-2)
