"""Run every solver on one problem: the minimum is the same, the cost differs."""

import valuefit as vf

mdp = vf.datasets.random_mdp(100, features=40, seed=0)
problem = vf.Problem(mdp.log(5_000, seed=0), mdp.rows, discount=0.95)
exact = vf.solve(problem, "lstd")

print(f"{problem.n} steps, {problem.d} features\n\nsolver          passes  gap      status")
for name in vf.solvers.names():
    result = vf.solve(problem, name, tol=1e-6, max_passes=100, reference=exact)
    print(f"{name:14} {result.passes:7.1f}  {result.history['gap'][-1]:.1e}  {result.status}")
