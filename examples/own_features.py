"""Evaluate one Mountain Car log with built-in features, a scikit-learn pipeline and a function, and compare."""

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import valuefit as vf

log = vf.datasets.mountain_car.sarsa(episodes=1000, seed=0).log(10_000, seed=1)
constant = FunctionTransformer(lambda X: np.ones((len(X), 1)))
sampler = RBFSampler(gamma=0.5, n_components=80, random_state=0)


def energy(observations):
    """A constant, position, velocity, potential and kinetic energy, and products of these."""
    x, v = observations.T
    height, motion = np.sin(3 * x), 1000 * v**2
    return np.column_stack([np.ones(len(x)), x, 10 * v, height, motion, height * motion, height * 10 * v])


for name, features in {
    "auto": "auto",
    "tiles": "tiles:tilings=8,bins=6",
    "pipeline": make_union(constant, make_pipeline(StandardScaler(), sampler)),
    "function": energy,
}.items():
    evaluation = vf.evaluate(log, features=features, discount=0.99)
    print(f"{name:9} {evaluation.problem.d:3} features  {evaluation.policy_value}")
print("If estimates differ by more than their intervals, some of the features cannot express the value function.")
