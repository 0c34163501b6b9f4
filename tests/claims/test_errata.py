"""The errata of the paper: on a small problem the printed form fails and the corrected form holds.

Equation names are the labels in the source of the paper.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.brute import Brute
from helpers.problems import problem_of
from helpers.twins import Preset
from valuefit import Theory


def small_log(**settings: object) -> naive.Log:
    """A random log with rewards far from zero and features of two scales."""
    log = naive.random_log(np.random.default_rng(4), **{"n": 30, "d": 3, **settings})
    units = np.ones(log.Psi.shape[1])
    units[1] = 2.0
    return log._replace(Phi=log.Phi * units[:3], Psi=log.Psi * units, reward=3 * log.reward + 2)


def random_point(log: naive.Log) -> tuple[np.ndarray, np.ndarray]:
    """Random theta and w."""
    rng = np.random.default_rng(8)
    return rng.normal(size=log.Phi.shape[1]), rng.normal(size=log.Psi.shape[1])


def max_abs(*parts: np.ndarray) -> float:
    return max(float(np.abs(part).max()) for part in parts)


def test_erratum_01_the_operator_of_a_step_needs_A_transposed() -> None:
    """Equation (Bt) prints ridge theta - A_t w; the gradient of the Lagrangian has A_t'."""
    log = small_log(ridge=0.2)
    brute, problem, (theta, w) = Brute(log), problem_of(log), random_point(log)
    gradient = 0.2 * theta - brute.A.T @ w
    printed = [0.2 * theta - naive.matrices(log, step)[0] @ w for step in naive.steps(log)]
    corrected = [0.2 * theta - naive.matrices(log, step)[0].T @ w for step in naive.steps(log)]
    assert max_abs(np.mean(printed, axis=0) - gradient) > 0.1
    assert max_abs(np.mean(corrected, axis=0) - gradient) < 1e-12
    assert max_abs(problem.B(theta, w)[0] - gradient) < 1e-12
    # with separate dual features A_t is not square
    wide = small_log(k=5)
    theta, w = random_point(wide)
    assert max_abs(problem_of(wide).B(theta, w)[0] + Brute(wide).A.T @ w) < 1e-12


def test_erratum_02_the_best_dual_weights_use_A_not_its_transpose() -> None:
    """Appendix B prints w* = C^-1 (b - A' theta*)."""
    log = small_log(ridge=0.2)
    brute, problem = Brute(log), problem_of(log)
    found = vf.solve(problem, "lstd")
    theta = found.theta
    printed = np.linalg.solve(brute.C, brute.b - brute.A.T @ theta)
    corrected = np.linalg.solve(brute.C, brute.b - brute.A @ theta)
    assert max_abs(*problem.B(theta, printed)) > 0.01
    assert max_abs(*problem.B(theta, corrected)) < 1e-12
    assert max_abs(found.w - corrected) < 1e-10


@pytest.mark.parametrize(("trace", "scalars"), [(0.0, 2), (0.7, 3)])
def test_erratum_03_saga_keeps_two_scalars_a_step_or_three_with_traces(trace: float, scalars: int) -> None:
    """Section 5.2 prints v'theta, v'w and phi'w. Without traces v'w is not used; with them u'w is missing."""
    log = small_log(ratio=True, trace=trace)
    problem, (theta, w) = problem_of(log), random_point(log)
    state, _ = vf.solvers.SAGA().init(problem, theta, w)
    table = state.memory[0].entries
    assert table.shape == (problem.n, scalars)
    for t, (u, v, psi, reward) in enumerate(naive.steps(log)):
        v_theta, psi_w = table[t, :2]
        u_w = table[t, 2] if trace else log.ratio[t] * psi_w
        reconstructed = (-v * u_w, u * (v_theta - reward) + psi * psi_w)
        gradient = naive.B_t(log, (u, v, psi, reward), theta, w)
        assert max_abs(reconstructed[0] - gradient[0], reconstructed[1] - gradient[1]) < 1e-12


def test_erratum_03_the_printed_scalars_are_too_few_with_traces_and_too_many_without() -> None:
    traced, plain = small_log(trace=0.7), small_log(ratio=True)
    t = next(t for t in range(1, 30) if traced.episode[t] == traced.episode[t - 1] and traced.next[t - 1] >= 0)
    _, v, psi, _ = step = naive.steps(traced)[t]
    blind = np.cross(v, psi)  # v'w = phi'w = 0, as at w = 0
    assert max_abs(v @ blind, psi @ blind) < 1e-12
    assert max_abs(naive.B_t(traced, step, np.zeros(3), blind)[0]) > 1e-3
    _, v, psi, _ = step = naive.steps(plain)[5]
    unseen = v - psi * (psi @ v) / (psi @ psi)  # phi'w = 0 but v'w is not
    assert abs(v @ unseen) > 1e-3
    here, origin = (naive.B_t(plain, step, np.zeros(3), w) for w in (unseen, np.zeros(3)))
    assert max_abs(here[0] - origin[0], here[1] - origin[1]) < 1e-12


def printed_saga(log: naive.Log, theta: np.ndarray, w: np.ndarray, draws: list[int], steps: tuple[float, float]):
    """Algorithm 3 as printed: the table holds whole gradients B_t, including ridge theta."""
    data, n = naive.steps(log), len(log.now)
    g = [naive.B_t(log, step, theta, w) for step in data]
    for t in draws:
        B = [sum(part) / n for part in zip(*g, strict=True)]
        h = naive.B_t(log, data[t], theta, w)
        theta = theta - steps[0] * (B[0] + h[0] - g[t][0])
        w = w - steps[1] * (B[1] + h[1] - g[t][1])
        g[t] = h
    return theta, w


@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_erratum_04_with_a_ridge_a_stored_gradient_is_not_a_multiple_of_its_row(ridge: float) -> None:
    """Section 5.2 stores scalars only. With ridge > 0 the term ridge theta must stay outside the table, exact."""
    log = small_log(ridge=ridge)
    problem, (theta, w) = problem_of(log), random_point(log)
    off = 0.0
    for step in naive.steps(log):
        v, part = step[1], naive.B_t(log, step, theta, w)[0]
        off = max(off, max_abs(part - v * (v @ part) / (v @ v)))
    assert (off < 1e-12) == (ridge == 0)

    draws = np.random.default_rng(0).integers(0, 30, 60)
    solver = vf.solvers.SAGA(step_theta=0.02, step_w=0.04, inner=60)
    state, _ = solver.epoch(problem, solver.init(problem, theta, w)[0], Preset([draws], 30))
    printed = printed_saga(log, theta, w, draws, (0.02, 0.04))
    difference = max_abs(state.theta - printed[0], state.w - printed[1])
    assert difference < 1e-10 if ridge == 0 else difference > 1e-4


def test_erratum_04_departure_has_the_same_fixed_point() -> None:
    """The saddle point is a fixed point of both the printed and the implemented algorithm."""
    log = small_log(ridge=0.2)
    problem, best = problem_of(log), Brute(log).saddle_point
    draws = np.random.default_rng(0).integers(0, 30, 60)
    solver = vf.solvers.SAGA(step_theta=0.02, step_w=0.04, inner=60)
    state, _ = solver.epoch(problem, solver.init(problem, *best)[0], Preset([draws], 30))
    printed = printed_saga(log, *best, draws, (0.02, 0.04))
    assert max_abs(state.theta - best[0], state.w - best[1], printed[0] - best[0], printed[1] - best[1]) < 1e-12


def test_erratum_05_theorems_2_and_3_have_kappa_C_not_its_square() -> None:
    """The proofs put kappa(Q)^2 <= 8 kappa(C) and lambda_min >= 8/9 mu into 5 kappa(Q)^2 L_G^2 / lambda_min^2."""
    log = small_log()
    brute, theory, n = Brute(log), Theory(problem_of(log)), 30
    kappa_C, L_G2, mu = brute.kappa_C, brute.L_G**2, brute.mu_rho
    assert kappa_C > 3
    proved = 5 * (8 * kappa_C) * L_G2 / (8 / 9 * mu) ** 2
    printed = 51 * kappa_C**2 * L_G2 / mu**2
    assert printed > 3 * proved
    assert theory.svrg().inner == pytest.approx(proved, rel=0.01)

    # Theorem 3: the larger step of the corrected form still satisfies both conditions of the proof
    low, noise = brute.G_eigenvalues[0], brute.kappa_Q2 * L_G2
    step, _, rate = theory.saga()
    printed_step = mu / (3 * (8 * kappa_C**2 * L_G2 + n * mu**2))
    assert step > 3 * printed_step
    rho = step * low - 2 * step**2 * noise
    assert rho >= rate
    assert 2 * step * noise + (n * rho - 1) * low * (1 - step * low) <= 0
    printed_rate = mu**2 / (9 * (8 * kappa_C**2 * L_G2 + n * mu**2))
    assert rate > 3 * printed_rate


def test_erratum_06_mu_is_not_squared_in_the_step_of_saga() -> None:
    """Scaling the features by `units` must scale the step by 1 / units^2; the printed mu^2 violates this."""
    log = small_log()

    def steps(units: float) -> tuple[float, float, float]:
        scaled = log._replace(Phi=units * log.Phi, Psi=units * log.Psi)
        brute = Brute(scaled)
        noise = 8 * brute.kappa_C * brute.L_G**2
        squared = brute.mu_rho**2
        printed = squared / (3 * (noise + 30 * squared**2))
        limit = brute.G_eigenvalues[0] / (3 * (noise + 30 * brute.mu_rho**2))
        return Theory(problem_of(scaled)).saga().step_theta * units**2, printed * units**2, limit * units**2

    (one, printed_one, _), (large, printed_large, limit) = steps(1.0), steps(100.0)
    assert large == pytest.approx(one, rel=1e-5)
    assert printed_large > 100 * printed_one
    # in large units the printed step exceeds the limit of the proof
    assert printed_large > 10 * limit
    assert large <= limit * (1 + 1e-5)


def test_erratum_07_with_a_ridge_the_fixed_point_of_td_is_not_the_minimiser() -> None:
    for ridge in (0.0, 0.2):
        log = small_log(ridge=ridge)
        brute, problem = Brute(log), problem_of(log)
        best = brute.saddle_point[0]
        plain = np.linalg.solve(brute.A, brute.b)
        regularised = np.linalg.solve(brute.A + ridge * np.eye(3), brute.b)
        close = [max_abs(point - best) < 1e-9 for point in (plain, regularised)]
        assert close == [ridge == 0] * 2
        for name in ("flstd-sa", "ctd", "ilstd"):
            if ridge == 0:
                assert vf.solve(problem, name, max_passes=3, tol=0).status == "budget"
            else:
                with pytest.raises(
                    ValueError, match=r"its fixed point A theta = b is not the minimiser when ridge > 0"
                ):
                    vf.solve(problem, name)


def test_erratum_08_the_random_mdp_has_201_features_including_a_constant() -> None:
    """The figure's caption says d = 200; section 8 says 200 uniform features and a constant one."""
    from valuefit.datasets.mdp import random_mdp

    mdp = random_mdp(states=30, actions=2)
    problem = vf.Problem(mdp.log(50), mdp.rows, discount=0.95)
    assert problem.d == 201
    assert (mdp.features[:, -1] == 1).all()
    assert mdp.features[:, :-1].std(axis=0).min() > 0.1


def test_erratum_09_the_potential_P_contracts_where_Omega_need_not() -> None:
    """Theorems 2 and 3 bound Omega, but the proofs bound P; Omega has an extra factor kappa(Q)^2 <= 8 kappa(C)."""
    log = small_log()
    brute, problem = Brute(log), problem_of(log)
    solver, plan = vf.solvers.PDBG(steps="theorem"), Theory(problem).pdbg()
    best_theta, best_w = brute.saddle_point
    before, _ = solver.init(problem, best_theta + np.array([1.0, -1.0, 2.0]), best_w)
    after, _ = solver.epoch(problem, before, None)
    assert brute.Omega2(after.theta, after.w) > brute.Omega2(before.theta, before.w)
    assert brute.P(after.theta, after.w) <= plan.contraction * brute.P(before.theta, before.w)

    assert brute.kappa_Q2 <= 8 * brute.kappa_C
    start, state = brute.Omega2(before.theta, before.w), before
    for iteration in range(1, 200):
        state, _ = solver.epoch(problem, state, None)
        assert brute.Omega2(state.theta, state.w) <= brute.kappa_Q2 * plan.contraction**iteration * start


def test_erratum_10_b_enters_the_saga_dynamics_with_a_minus() -> None:
    """Appendix D prints + mean b_t in the second line of the dynamics."""
    log = small_log()
    brute = Brute(log)
    theta, w = brute.saddle_point
    pairs = [naive.matrices(log, step) for step in naive.steps(log)]
    printed = np.mean([A_t @ theta + C_t @ w + b_t for A_t, b_t, C_t in pairs], axis=0)
    corrected = np.mean([A_t @ theta + C_t @ w - b_t for A_t, b_t, C_t in pairs], axis=0)
    assert max_abs(printed) > 0.01
    assert max_abs(corrected) < 1e-12
    state, _ = vf.solvers.SAGA().init(problem_of(log), theta, w)
    assert max_abs(state.memory[0].mean[1] - corrected) < 1e-12


@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_erratum_10_the_second_potential_of_saga_does_not_start_equal_to_the_first(ridge: float) -> None:
    """Appendix D prints Q_0 = P_0, which is wrong; T_0 <= 2 P_0 holds, and the proof needs only that."""
    log = small_log(ridge=ridge)
    brute, step = Brute(log), Theory(problem_of(log)).saga().step_theta
    low, noise = brute.G_eigenvalues[0], brute.kappa_Q2 * brute.L_G**2
    for seed in range(20):
        Delta = np.random.default_rng(seed).normal(size=6)
        P_0 = Delta @ brute.H @ Delta
        Q_0 = np.mean([(G_t @ Delta) @ brute.H @ (G_t @ Delta) for G_t in brute.G_t])
        assert not 0.5 < Q_0 / P_0 < 2
        T_0 = P_0 + 30 * step * low * (1 - step * low) / noise * Q_0
        assert T_0 <= 2 * P_0


def test_erratum_11_the_norm_of_a_step_depends_on_both_extreme_eigenvalues() -> None:
    """Appendix C prints max{(1 - step lambda_min)^2, (1 - step lambda_min)^2}."""
    brute = Brute(small_log())
    values = brute.G_eigenvalues
    low, high = values[0], values[-1]
    for step, beyond in (
        (1 / high, False),
        (1.98 / (low + high), False),
        (2.02 / (low + high), True),
        (3 / high, True),
    ):
        norm2 = np.abs(1 - step * values).max() ** 2
        assert norm2 == pytest.approx(max((1 - step * low) ** 2, (1 - step * high) ** 2), rel=1e-9)
        assert (norm2 > (1 - step * low) ** 2 * (1 + 1e-6)) == beyond
    # the same in the norm of H, which the proof uses
    root = np.linalg.cholesky(brute.H).T
    step = 2.02 / (low + high)
    moved = root @ (np.eye(6) - step * brute.G) @ np.linalg.inv(root)
    assert np.linalg.norm(moved, 2) == pytest.approx(abs(1 - step * high), rel=1e-6)


def test_erratum_12_B_of_saga_is_the_mean_of_the_table_not_its_sum() -> None:
    """Section 5.2 prints B = sum g_t; Algorithm 3 itself has 1/n."""
    log = small_log(ratio=True)
    problem, (theta, w) = problem_of(log), random_point(log)
    solver = vf.solvers.SAGA(step_theta=0.02, step_w=0.04, inner=45)
    state, _ = solver.init(problem, theta, w)
    for _ in range(2):
        (table, (B_theta, B_w)), _ = state.memory
        g = [
            (-v * log.ratio[t] * table[t, 1], u * (table[t, 0] - reward) + psi * table[t, 1])
            for t, (u, v, psi, reward) in enumerate(naive.steps(log))
        ]
        total = [sum(part) for part in zip(*g, strict=True)]
        assert max_abs(B_theta - total[0] / 30, B_w - total[1] / 30) < 1e-12
        assert max_abs(B_theta - total[0], B_w - total[1]) > 0.1
        state, _ = solver.epoch(problem, state, np.random.default_rng(0))


@pytest.mark.parametrize("settings", [{"ratio": True}, {"trace": 0.7}, {"ratio": True, "trace": 0.7}])
def test_erratum_13_tdc_needs_its_own_direction_off_policy_and_with_traces(settings: dict) -> None:
    """At the saddle point the mean of delta u - phi (phi'w) + v (u'w) - ridge theta is zero, GTD(lambda)'s is not."""
    log = small_log(ridge=0.2, **settings)
    problem, (theta, w) = problem_of(log), Brute(log).saddle_point
    assert max_abs(w) > 0.01
    usual, corrected = [], []
    for u, v, phi, reward in naive.steps(log):
        delta = reward - v @ theta
        bootstrap = phi - v  # discount_t phi'_t
        usual.append(delta * u - (1 - log.trace) * bootstrap * (u @ w) - 0.2 * theta)
        corrected.append(delta * u - phi * (phi @ w) + v * (u @ w) - 0.2 * theta)
    assert max_abs(np.mean(usual, axis=0)) > 1e-3
    assert max_abs(np.mean(corrected, axis=0)) < 1e-12

    # the solver uses the corrected direction: the mean of its single-row updates is zero at the saddle point
    solver = vf.solvers.TDC(step_theta=0.1, step_w=0.1, decay=math.inf, inner=1)
    state, _ = solver.init(problem, theta, w)
    changes = [solver.epoch(problem, state, Preset([np.array([t])], 30))[0] for t in range(30)]
    assert max_abs(np.mean([s.theta - theta for s in changes], axis=0)) < 1e-12
    assert max_abs(np.mean([s.w - w for s in changes], axis=0)) < 1e-12
    assert max_abs(changes[0].theta - theta - 0.1 * corrected[0]) < 1e-12
