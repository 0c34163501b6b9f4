"""The paper's constants and matrices from dense formulas that form every A_t, C_t and G_t."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

import naive


class Brute:
    """Sections 4 to 6 and appendices A to D, in the paper's names, for a small log with C positive definite."""

    def __init__(self, log: naive.Log) -> None:
        self.log = log
        self.A, self.b, self.C = naive.moments(log)
        self.ridge, self.n, (self.k, self.d) = log.ridge, len(log.now), self.A.shape
        spectrum = np.linalg.eigvalsh(self.C)
        self.lambda_min_C, self.lambda_max_C = spectrum[0], spectrum[-1]
        self.kappa_C = self.lambda_max_C / self.lambda_min_C
        spectrum = np.linalg.eigvalsh(self.ridge * np.eye(self.d) + self.A.T @ np.linalg.inv(self.C) @ self.A)
        self.mu_rho, self.L_rho = spectrum[0], spectrum[-1]
        self.kappa = self.L_rho / self.mu_rho
        self.beta = 8 * self.L_rho / self.lambda_min_C

    def coupled(self, A: np.ndarray, C: np.ndarray) -> np.ndarray:
        """[[ridge I, -sqrt(beta) A'], [sqrt(beta) A, beta C]]."""
        root = math.sqrt(self.beta)
        return np.block([[self.ridge * np.eye(self.d), -root * A.T], [root * A, self.beta * C]])

    @property
    def G(self) -> np.ndarray:
        """Equation (G_def)."""
        return self.coupled(self.A, self.C)

    @cached_property
    def G_t(self) -> list[np.ndarray]:
        """Equation (LG-def), one for each step."""
        matrices = [naive.matrices(self.log, step) for step in naive.steps(self.log)]
        return [self.coupled(A_t, C_t) for A_t, _, C_t in matrices]

    @cached_property
    def L_G(self) -> float:
        return math.sqrt(np.linalg.norm(sum(G_t.T @ G_t for G_t in self.G_t) / self.n, 2))

    @cached_property
    def H(self) -> np.ndarray:
        """Equation (H-matrix) with delta = 4 (ridge + L): Q'HQ = I for eigenvectors Q of G, so H = Q^-T Q^-1."""
        root, delta = math.sqrt(self.beta), 4 * self.L_rho
        upper, lower = (delta - self.ridge) * np.eye(self.d), self.beta * self.C - delta * np.eye(self.k)
        return np.block([[upper, root * self.A.T], [root * self.A, lower]])

    @cached_property
    def kappa_Q2(self) -> float:
        """kappa(Q)^2 = kappa(H)."""
        values = np.linalg.eigvalsh(self.H)
        return values[-1] / values[0]

    @cached_property
    def G_eigenvalues(self) -> np.ndarray:
        return np.sort(np.linalg.eigvals(self.G).real)

    @cached_property
    def saddle_point(self) -> tuple[np.ndarray, np.ndarray]:
        """theta* and w*, from the first-order condition [[ridge I, -A'], [A, C]] x = (0, b)."""
        left = np.block([[self.ridge * np.eye(self.d), -self.A.T], [self.A, self.C]])
        x = np.linalg.solve(left, np.concatenate([np.zeros(self.d), self.b]))
        return x[: self.d], x[self.d :]

    def Delta(self, theta: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The scaled error (theta - theta*, (w - w*) / sqrt(beta))."""
        best_theta, best_w = self.saddle_point
        return np.concatenate([theta - best_theta, (w - best_w) / math.sqrt(self.beta)])

    def P(self, theta: np.ndarray, w: np.ndarray) -> float:
        """The potential |Q^-1 Delta|^2 of the proofs."""
        Delta = self.Delta(theta, w)
        return float(Delta @ self.H @ Delta)

    def Omega2(self, theta: np.ndarray, w: np.ndarray) -> float:
        """The squared norm in the theorems: |theta - theta*|^2 + |w - w*|^2 / beta."""
        Delta = self.Delta(theta, w)
        return float(Delta @ Delta)
