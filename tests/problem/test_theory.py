"""The constants, step sizes and predictions of `Theory` equal dense formulas computed by brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.brute import Brute
from helpers.problems import problem_of
from valuefit import Theory


def small_log(seed: int = 0, thin: bool = False, **settings: object) -> naive.Log:
    rng = np.random.default_rng(seed)
    log = naive.random_log(rng, **{"n": 30, "d": 4, **settings})
    if thin:  # the constant and two other nonzeros in each row
        kept = np.argsort(rng.random(log.Psi[:, 1:].shape), axis=1) < 2
        Psi = np.hstack([log.Psi[:, :1], log.Psi[:, 1:] * kept])
        log = log._replace(Phi=Psi[:, : log.Phi.shape[1]].copy(), Psi=Psi)
    return log


COMBINATIONS = [
    {"ratio": ratio, "trace": trace, "ridge": ridge, "k": k, "identity": identity}
    for ratio, trace, ridge, k, identity in product((False, True), (0.0, 0.7), (0.0, 0.3), (4, 6), (False, True))
]


def name_of(settings: dict) -> str:
    return ",".join(f"{key}={value}" for key, value in settings.items())


@pytest.mark.parametrize("storage", ["dense", "csr", "thin csr"])
@pytest.mark.parametrize("settings", COMBINATIONS, ids=name_of)
def test_constants_equal_the_dense_formulas(settings: dict, storage: str) -> None:
    log = small_log(1, thin=storage == "thin csr", **settings)
    theory, brute = Theory(problem_of(log, storage.split()[-1])), Brute(log)
    for name in ("lambda_min_C", "lambda_max_C", "kappa_C", "L_rho", "mu_rho", "beta"):
        assert getattr(theory, name) == pytest.approx(getattr(brute, name), rel=1e-8), name
    assert theory.kappa == pytest.approx(brute.L_rho / brute.mu_rho, rel=1e-8)
    assert math.isclose(theory.L_G, brute.L_G, rel_tol=1e-6)
    assert theory.kappa_G == pytest.approx(brute.L_G / brute.mu_rho, rel=1e-6)


def test_constants_of_float32_rows_equal_those_of_the_rounded_numbers() -> None:
    log = small_log(1, ratio=True, trace=0.7, ridge=0.3)
    rounded = log.Phi.astype(np.float32).astype(np.float64)
    theory, brute = Theory(problem_of(log, "float32")), Brute(log._replace(Phi=rounded, Psi=rounded))
    assert theory.mu_rho == pytest.approx(brute.mu_rho, rel=1e-8)
    assert math.isclose(theory.L_G, brute.L_G, rel_tol=1e-6)


@pytest.mark.parametrize("settings", COMBINATIONS, ids=name_of)
def test_G_has_the_spectrum_of_the_explicit_matrix(settings: dict) -> None:
    log = small_log(1, **settings)
    brute = Brute(log)
    expected = np.linalg.eigvals(brute.G)
    found = Theory(problem_of(log)).G_spectrum()
    assert np.sort(found.real) == pytest.approx(np.sort(expected.real), rel=1e-7, abs=1e-9 * brute.beta)


@pytest.mark.parametrize("settings", COMBINATIONS, ids=name_of)
def test_appendix_A_holds_on_random_problems(settings: dict) -> None:
    """G has real positive eigenvalues within its bounds, H G is symmetric, H > 0 and kappa(H) <= 8 kappa(C)."""
    for seed in range(12):
        brute = Brute(small_log(seed, **settings))
        G, H = brute.G, brute.H
        spectrum = np.linalg.eigvals(G)
        size = np.abs(spectrum).max()
        assert np.abs(spectrum.imag).max() <= 1e-9 * size
        assert spectrum.real.min() > 0
        # the paper proves (8/9) mu_rho; mu_rho itself follows from lambda - ridge >= eta'AA'eta / eta'C eta
        assert spectrum.real.min() >= brute.mu_rho * (1 - 1e-6) - 1e-12 * size
        assert spectrum.real.max() <= 9 * brute.kappa_C * brute.L_rho * (1 + 1e-12)
        assert np.abs(H @ G - (H @ G).T).max() <= 1e-10 * np.abs(H @ G).max()
        values = np.linalg.eigvalsh(H)
        assert values[0] >= brute.L_rho * (1 - 1e-9)
        assert values[-1] / values[0] <= 8 * brute.kappa_C * (1 + 1e-9)


def test_G_loses_its_real_spectrum_when_beta_is_far_below_the_stated_one() -> None:
    """The ratio of the steps matters, so the test above can fail."""
    brute = Brute(small_log(1))
    brute.beta /= 100
    spectrum = np.linalg.eigvals(brute.G)
    assert np.abs(spectrum.imag).max() > 1e-3 * np.abs(spectrum).max()


@pytest.mark.parametrize("settings", COMBINATIONS, ids=name_of)
def test_step_sizes_are_those_of_the_theorems(settings: dict) -> None:
    log = small_log(2, **settings)
    theory, brute, n = Theory(problem_of(log)), Brute(log), len(log.now)
    kappa_C, mu, L, L_G2 = brute.kappa_C, brute.mu_rho, brute.L_rho, brute.L_G**2

    one = theory.pdbg()
    assert one.step_theta == pytest.approx(1 / (9 * L * kappa_C), rel=1e-7)
    assert one.step_w == pytest.approx(8 / (9 * brute.lambda_max_C), rel=1e-7)
    assert one.step_w / one.step_theta == pytest.approx(brute.beta, rel=1e-7)
    assert one.contraction == pytest.approx((1 - 8 / 81 / kappa_C / (L / mu)) ** 2, rel=1e-12)

    for rate, step, inner, contraction in (("4/5", 1 / 48, 51, 4 / 5), ("3/4", 1 / 27, 92, 3 / 4)):
        two = theory.svrg(rate)
        assert two.step_theta == pytest.approx(step * mu / (kappa_C * L_G2), rel=1e-6)
        assert two.step_w / two.step_theta == pytest.approx(brute.beta, rel=1e-7)
        assert two.inner == pytest.approx(math.ceil(inner * kappa_C * L_G2 / mu**2), rel=1e-6)
        assert two.inner == int(two.inner)
        assert two.contraction == contraction

    three = theory.saga()
    bottom = 8 * kappa_C * L_G2 + n * mu**2
    assert three.step_theta == pytest.approx(mu / (3 * bottom), rel=1e-6)
    assert three.step_w / three.step_theta == pytest.approx(brute.beta, rel=1e-7)
    assert 1 - three.contraction == pytest.approx(mu**2 / (9 * bottom), rel=1e-4)


@pytest.mark.parametrize("settings", COMBINATIONS, ids=name_of)
def test_plans_meet_the_conditions_of_their_proofs(settings: dict) -> None:
    for seed in range(4):
        log = small_log(seed, **settings)
        theory, brute, n = Theory(problem_of(log)), Brute(log), len(log.now)
        spectrum = brute.G_eigenvalues
        low, noise = spectrum[0], brute.kappa_Q2 * brute.L_G**2

        one = theory.pdbg()
        assert np.abs(1 - one.step_theta * spectrum).max() ** 2 <= one.contraction * (1 + 1e-9)

        fastest = theory.pdbg_fastest()
        norm = np.abs(1 - fastest.step_theta * spectrum).max()
        assert norm**2 == pytest.approx(fastest.contraction, rel=1e-6)
        assert fastest.contraction <= one.contraction * (1 + 1e-9)
        assert norm == pytest.approx(1 - 2 / (1 + spectrum[-1] / low), rel=1e-6)

        for rate in ("4/5", "3/4"):
            step, _, inner, contraction = theory.svrg(rate)
            assert step <= low / (3 * noise) * (1 + 1e-6)
            proved = math.exp(inner * math.log1p(-step * low)) + 2 * step * noise / low
            assert proved <= contraction

        step, _, rate = theory.saga()
        rho = step * low - 2 * step**2 * noise
        assert rho >= rate * (1 - 1e-6)
        assert 2 * step * noise + (n * rho - 1) * low * (1 - step * low) <= 0


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_no_other_step_contracts_the_batch_method_faster(factor: float) -> None:
    log = small_log(3)
    fastest, spectrum = Theory(problem_of(log)).pdbg_fastest(), Brute(log).G_eigenvalues
    assert np.abs(1 - factor * fastest.step_theta * spectrum).max() ** 2 > fastest.contraction


def test_predicted_iterations_shrink_the_potential_by_epsilon() -> None:
    theory = Theory(problem_of(small_log(1, ridge=0.3)))
    for epsilon in (1e-2, 1e-8):
        predicted = theory.predicted_iterations(epsilon)
        assert set(predicted) == {"pdbg", "svrg", "saga"}
        assert theory.pdbg().contraction ** predicted["pdbg"] == pytest.approx(epsilon)
        assert theory.svrg().contraction ** predicted["svrg"] == pytest.approx(epsilon)
        assert 2 * theory.saga().contraction ** predicted["saga"] == pytest.approx(epsilon)


def test_predicted_iterations_of_an_ill_conditioned_problem_survive_rounding() -> None:
    """At rates below 1e-16 the contraction rounds to 1, but log(epsilon) / rate is still defined."""
    log = small_log(1)
    units = np.array([1.0, 1.0, 1e-3, 1e-3])
    theory = Theory(problem_of(log._replace(Phi=log.Phi * units, Psi=log.Psi * units)))
    bottom = 8 * theory.kappa_C * theory.L_G**2 + 30 * theory.mu_rho**2
    rate = theory.mu_rho**2 / (9 * bottom)
    assert rate < 1e-17
    predicted = theory.predicted_iterations(1e-6)
    assert predicted["saga"] == pytest.approx(math.log(2e6) / rate, rel=1e-3)
    assert predicted["pdbg"] == pytest.approx(math.log(1e6) * 81 / 16 * theory.kappa_C * theory.kappa, rel=1e-3)


def test_table1_equals_the_printed_expressions() -> None:
    log = small_log(1, ridge=0.3)
    theory, brute = Theory(problem_of(log)), Brute(log)
    n, d, digits = 30, 4, math.log(1e6)
    kappa, kappa_G = brute.L_rho / brute.mu_rho, brute.L_G / brute.mu_rho
    table = theory.table1(1e-6)
    assert table == pytest.approx(
        {
            "svrg/saga": n * d * (1 + brute.kappa_C * kappa_G**2 / n) * digits,
            "pdbg (I)": n * d * brute.kappa_C * kappa * digits,
            "pdbg (II)": n * d**2 + d**2 * brute.kappa_C * kappa * digits,
            "lstd": n * d**2 + d**3,
        },
        rel=1e-6,
    )


class Stated(Theory):
    """A theory with given constants, to test the formulas alone."""

    kappa_C = kappa_G = kappa = 0.0

    def __init__(self, n: int, d: int, kappa_C: float, kappa_G: float, kappa: float) -> None:
        class Shape:
            pass

        self.problem = Shape()
        self.problem.n, self.problem.d = n, d
        self.kappa_C, self.kappa_G, self.kappa = kappa_C, kappa_G, kappa


GRID = list(product((100, 10_000, 10**6), (2, 20, 200, 2000), (1.5, 30.0), (1.0, 5.0, 40.0), (1.2, 20.0)))


def test_crossover_with_lstd_agrees_with_table1() -> None:
    """Table 1 prints O(n d^2) or O(n d^2 + d^3) for LSTD; section 6 compares with the first."""
    sides = set()
    for values in GRID:
        theory = Stated(*values)
        n, d = values[:2]
        cheaper = theory.table1(1e-6)["svrg/saga"] < n * d**2
        assert cheaper == (d > theory.beats_lstd_from_d(1e-6)), values
        sides.add(cheaper)
    assert sides == {True, False}


def test_crossover_with_pdbg_agrees_with_table1() -> None:
    sides = set()
    for values in GRID:
        theory = Stated(*values)
        table = theory.table1(1e-6)
        cheaper = table["svrg/saga"] < table["pdbg (I)"]
        assert cheaper == (values[0] > theory.beats_pdbg_from_n()), values
        sides.add(cheaper)
    assert sides == {True, False}


def test_perfect_conditioning_never_lets_the_stochastic_methods_beat_the_batch_method() -> None:
    theory = Stated(10**9, 10, 1.0, 1.0, 1.0)
    assert theory.beats_pdbg_from_n() == math.inf
    assert theory.table1(1e-6)["svrg/saga"] >= theory.table1(1e-6)["pdbg (I)"]


@pytest.mark.parametrize("solver", [vf.solvers.PDBG, vf.solvers.SVRG, vf.solvers.SAGA])
def test_solvers_use_the_steps_of_their_theorem_on_request(solver: type) -> None:
    problem = problem_of(small_log(1, n=12, d=1))
    plan = getattr(Theory(problem), solver.name)()
    state, _ = solver(steps="theorem").init(problem, np.zeros(1), np.zeros(1))
    assert state.steps == (plan.step_theta, plan.step_w)
    if solver.name == "svrg":
        assert state.memory[0] == plan.inner
        other, _ = solver(steps="theorem", rate="3/4").init(problem, np.zeros(1), np.zeros(1))
        assert other.memory[0] == Theory(problem).svrg("3/4").inner
        assert other.steps[0] == Theory(problem).svrg("3/4").step_theta
    if solver.name == "pdbg":
        fastest, _ = solver(steps="theorem", fastest=True).init(problem, np.zeros(1), np.zeros(1))
        assert fastest.steps == tuple(Theory(problem).pdbg_fastest()[:2])


# ---- where the paper's assumption fails --------------------------------------------------------------------


def test_singular_C_gives_the_constants_of_the_subspace_that_the_rows_span() -> None:
    log = small_log(1, d=3)
    turn = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0] @ turn  # orthonormal columns
    wide = log._replace(Phi=log.Phi @ turn.T, Psi=log.Psi @ turn.T)
    full, singular = Theory(problem_of(log)), Theory(problem_of(wide))
    assert np.linalg.matrix_rank(naive.moments(wide)[2]) == 3
    for name in ("kappa_C", "L_rho", "mu_rho", "beta", "L_G"):
        assert getattr(singular, name) == pytest.approx(getattr(full, name), rel=1e-6), name
    assert singular.pdbg_fastest() == pytest.approx(full.pdbg_fastest(), rel=1e-6)


def test_a_ridge_sets_mu_where_A_is_singular() -> None:
    log = small_log(1, d=3, ridge=0.25)
    doubled = log._replace(Phi=log.Phi[:, [0, 1, 2, 2]], Psi=log.Psi[:, [0, 1, 2, 2]])
    assert Theory(problem_of(doubled)).mu_rho == pytest.approx(0.25, rel=1e-9)


@pytest.mark.parametrize("ask", [lambda theory: theory.kappa_C, lambda theory: theory.L_G, Theory.pdbg, Theory.saga])
def test_features_that_are_zero_everywhere_give_a_sentence(ask: Callable[[Theory], object]) -> None:
    problem = vf.Problem.from_rows(np.zeros((3, 2)), [0, 1], [1, 2], [1.0, 2.0], 0.9)
    with pytest.raises(ValueError, match="so C = 0 and no theorem applies"):
        ask(Theory(problem))


def test_no_coupling_and_no_ridge_give_a_sentence() -> None:
    log = small_log(1)
    problem = problem_of(log._replace(ratio=np.zeros(30)))
    with pytest.raises(ValueError, match="A is zero and ridge is 0, so no theorem applies"):
        Theory(problem).mu_rho  # noqa: B018
