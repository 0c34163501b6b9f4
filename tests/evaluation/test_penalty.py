"""A penalty on the variance of the value: its correction, its errors, and what it does not depend on."""

import numpy as np
import pytest

import valuefit as vf
from helpers.fits import fit_of
from helpers.problems import wide_log
from valuefit.evaluation.penalty import Solution, sandwich_of
from valuefit.evaluation.uncertainty import Uncertainty
from valuefit.problem.exact import Exact

SETTINGS = {"features": "fourier:order=3", "discount": 0.9, "tol": 1e-12}
POLICY = np.array([[0.3, 0.7]])


def log_of(episodes=20, seed=0, *, constant=False):
    """A log of episodes of unequal lengths, with two actions; of rewards 1 without an end if `constant`."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 30, episodes)
    n = int(lengths.sum())
    obs = rng.normal(size=(n + 1, 2))
    for t in range(1, n + 1):
        obs[t] = 0.8 * obs[t - 1] + 0.6 * obs[t]
    reward = np.sin(obs[:n, 0]) + obs[:n, 1] ** 2 + rng.normal(size=n)
    if constant:
        reward[:] = 1.0
    return vf.Transitions.from_arrays(
        obs[:n], reward, episode=np.repeat(np.arange(episodes), lengths), action=rng.integers(0, 2, n),
        next_observation=obs[1:], behaviour_prob=np.full(n, 0.5),
        terminated=np.isin(np.arange(n), (np.cumsum(lengths) - 1)[::2]) & (not constant),
    )  # fmt: skip


def coin(observations):
    return np.tile(POLICY, (len(observations), 1))


VARIANTS = {
    "states": {},
    "trace": {"trace": 0.6},
    "ratios": {"policy": coin},
    "state-action": {"policy": coin, "values": "state-action"},
}


def corrected_weights(problem, weight, penalty):
    """theta_2, from moments with a weight for each step, in plain NumPy."""
    now, after = (problem.phi.take(index) for index in (problem.now, problem.next))
    v = now - problem.discount[:, None] * after
    u = np.zeros_like(now)
    for t in range(problem.n):
        u[t] = now[t] if problem.begins[t] else now[t] + problem.trace * problem.discount[t - 1] * u[t - 1]
        u[t] *= problem.ratio[t]
    A, b, C = (u.T * weight) @ v, (u.T * weight) @ problem.reward, (now.T * weight) @ now
    H = A.T @ np.linalg.solve(C, A) / weight.sum() + penalty * np.eye(problem.d)
    first = np.linalg.solve(H, A.T @ np.linalg.solve(C, b) / weight.sum())
    return first + penalty * np.linalg.solve(H, first)


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_are_corrected_with_the_equally_penalised_adjoint(variant):
    log = log_of()
    found = vf.evaluate(log, penalty=0.3, **SETTINGS, **VARIANTS[variant])
    problem, c = found.problem, found.policy_value
    A, b, C = problem.moments()
    first = Exact(problem).theta
    np.testing.assert_allclose(found.centre, first, rtol=1e-8, atol=1e-8)
    rows = found._rows(log.observations[log.now[log.begins]])
    start = np.asarray(rows.mean(axis=0)).ravel()
    saddle = np.block([[0.3 * np.eye(problem.d), A.T], [A, -C]])
    g = np.linalg.lstsq(saddle, np.concatenate([start, np.zeros(problem.k)]), rcond=None)[0][problem.d :]
    assert c.estimate == pytest.approx(start @ first + g @ (b - A @ first), rel=1e-8)
    assert abs(c.estimate - start @ first) > 1e-3
    without = np.linalg.lstsq(A, b, rcond=None)[0]
    assert c.estimate - start @ without == pytest.approx((start - A.T @ g) @ (first - without), rel=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_jackknife_is_that_of_both_solutions(variant):
    log = log_of()
    found = vf.evaluate(log, penalty=0.3, **SETTINGS, **VARIANTS[variant])
    errors = Uncertainty(sandwich_of(found.problem, Solution(found.result, found.centre), log.episode))
    for episode in range(0, 20, 3):
        weight = (log.episode != episode).astype(float)
        expected = corrected_weights(found.problem, weight, 0.3) - found.result.theta
        np.testing.assert_allclose(errors.replicates.theta[episode], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("variant", ["states", "trace", "ratios"])
def test_the_bootstrap_solves_both_reweighted_problems(variant):
    log = log_of()
    found = vf.evaluate(log, penalty=0.3, **SETTINGS, **VARIANTS[variant])
    errors = Uncertainty(sandwich_of(found.problem, Solution(found.result, found.centre), log.episode), "bootstrap")
    for draw in range(3):
        weight = errors.bootstrap.weights[draw][log.episode]
        expected = corrected_weights(found.problem, weight, 0.3)
        np.testing.assert_allclose(errors.bootstrap.theta[draw], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("variant", ["states", "trace", "ratios"])
def test_influences_are_derivatives_in_the_weights_of_the_steps(variant):
    log = log_of()
    found = vf.evaluate(log, penalty=0.3, **SETTINGS, **VARIANTS[variant])
    sandwich = sandwich_of(found.problem, Solution(found.result, found.centre), log.episode)
    changes = sandwich.changes(np.ones(len(log)))
    for episode in (0, 7):
        ends = []
        for size in (1e-5, -1e-5):
            weight = 1 + size * (log.episode == episode)
            ends.append(corrected_weights(found.problem, weight, 0.3))
        np.testing.assert_allclose(changes[episode], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-7)
    error = {
        kind: vf.evaluate(log, penalty=0.3, interval=kind, **SETTINGS, **VARIANTS[variant]).policy_value.standard_error
        for kind in ("cr1", "cr3", "bootstrap")
    }
    assert error["cr1"] == pytest.approx(error["cr3"], rel=0.3)
    assert error["bootstrap"] == pytest.approx(error["cr3"], rel=0.3)


def test_units_and_mixtures_of_the_features_do_not_matter():
    log, rng = log_of(), np.random.default_rng(1)
    mixture = rng.normal(size=(6, 6)) * [1.0, 1e4, 1e-3, 1.0, 1e6, 1.0]

    def rows(x):
        return np.column_stack([np.ones(len(x)), x, x**2, np.sin(x[:, 0])])

    plain = vf.evaluate(log, features=rows, penalty=0.1, discount=0.9, tol=1e-12)
    mixed = vf.evaluate(log, features=lambda x: rows(x) @ mixture, penalty=0.1, discount=0.9, tol=1e-12)
    assert mixed.policy_value.estimate == pytest.approx(plain.policy_value.estimate, rel=1e-7)
    assert mixed.policy_value.standard_error == pytest.approx(plain.policy_value.standard_error, rel=1e-6)
    np.testing.assert_allclose(mixed.value(log.observations[:9]), plain.value(log.observations[:9]), rtol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_vanishing_penalty_changes_nothing(variant):
    settings = {**SETTINGS, **VARIANTS[variant]}
    plain, found = vf.evaluate(log_of(), **settings), vf.evaluate(log_of(), penalty=1e-12, **settings)
    assert found.policy_value.estimate == pytest.approx(plain.policy_value.estimate, rel=1e-7)
    assert found.policy_value.standard_error == pytest.approx(plain.policy_value.standard_error, rel=1e-5)


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0, 10.0])
@pytest.mark.parametrize("values", ["state", "state-action"])
def test_the_constant_is_not_shrunk(values, penalty):
    """With a reward of 1 at every step and discount 0.99 the value is 100 everywhere."""
    log = log_of(constant=True)
    found = vf.evaluate(log, features="fourier:order=3", penalty=penalty, values=values,
                        policy=coin if values == "state-action" else None)  # fmt: skip
    np.testing.assert_allclose(found.value(log.observations[:5]), 100.0, rtol=1e-6 if values == "state" else 2e-5)


def test_a_strong_penalty_leaves_a_constant():
    log = log_of()
    values = vf.evaluate(log, penalty=1e3, **SETTINGS).value(log.observations)
    assert values.std() < 0.01 * abs(values.mean())


@pytest.mark.parametrize("solver", ["lstd", "krylov", "pdbg", "svrg", "saga", "recursive-lstd"])
def test_solvers_find_the_same_value(solver):
    log = log_of(60)
    exact = vf.evaluate(log, penalty=0.05, discount=0.95, features="fourier:order=3", solver="lstd").policy_value
    found = vf.evaluate(log, penalty=0.05, discount=0.95, features="fourier:order=3", solver=solver, max_passes=3000)
    assert found.result.status == "converged"
    assert found.policy_value.estimate == pytest.approx(exact.estimate, abs=0.1 * exact.standard_error)


def test_the_solver_error_is_that_of_both_solutions():
    log = log_of(60)
    settings = {"penalty": 0.05, "discount": 0.95, "features": "fourier:order=3"}
    exact = vf.evaluate(log, solver="lstd", tol=1e-12, **settings)
    found = vf.evaluate(log, solver="svrg", tol=1e-3, **settings)
    start = found._rows(log.observations[log.now[log.begins]]).mean(axis=0)
    difference = abs(start @ (found.result.theta - exact.result.theta))
    assert difference > 1e-8
    assert found.policy_value.solver_error == pytest.approx(difference, rel=1e-6)


def test_it_is_stored_and_shown(tmp_path):
    log = log_of()
    found = vf.evaluate(log, penalty=0.3, **SETTINGS)
    loaded = vf.Evaluation.load(found.save(tmp_path / "evaluation.npz"))
    assert loaded.penalty == found.to_dict()["penalty"] == 0.3
    assert found.ridge == 0.0
    np.testing.assert_allclose(loaded.value(log.observations[:9]), found.value(log.observations[:9]), rtol=1e-9)
    np.testing.assert_allclose(
        loaded.value_interval(log.observations[:9]), found.value_interval(log.observations[:9]), rtol=1e-6
    )
    assert "Penalty:" in found.summary()
    assert "Ridge:" not in found.summary()
    assert found.weights is None
    report = found.report(tmp_path / "report.html").read_text()
    assert "penalty=0.3" in report


def test_own_features_are_whitened_again_when_loaded(tmp_path):
    log = wide_log()

    def rows(x):
        return np.column_stack([x, x[:, 0] ** 2])

    found = vf.evaluate(log, features=rows, penalty=0.1)
    loaded = vf.Evaluation.load(found.save(tmp_path / "evaluation.npz"), features=rows)
    np.testing.assert_allclose(loaded.value(log.observations[:9]), found.value(log.observations[:9]), rtol=1e-9)
    with pytest.raises(ValueError, match="not those of the evaluation"):
        vf.Evaluation.load(tmp_path / "evaluation.npz", features=lambda x: rows(x) + x[:, :1] ** 3)


def test_comparisons_pair_corrected_values():
    log = log_of()
    plain, found = vf.evaluate(log, **SETTINGS), vf.evaluate(log, penalty=0.3, **SETTINGS)
    twice = vf.compare(found, found)
    assert twice.estimate == 0
    assert twice.standard_error == 0
    difference = vf.compare(found, plain)
    assert difference.estimate == pytest.approx(found.policy_value.estimate - plain.policy_value.estimate)
    assert 0 < difference.standard_error < found.policy_value.standard_error


def test_all_checks_run_with_a_penalty():
    found = vf.evaluate(log_of(), penalty=0.3, checks="all", **SETTINGS)
    checks = {check.name: check for check in found.checks}
    assert "Half the penalty changes the policy value" in checks["other penalties"].message
    assert checks["solver"].outcome == "pass"
    route = vf.evaluate(log_of(), penalty=0.3, policy=coin, **SETTINGS)
    assert "state-action values" in [entry.name for entry in route.cross_checks]


def test_a_note_says_where_values_are_guesses():
    state = np.arange(60) % 5
    following = np.where(state == 4, 5 + (np.arange(60) == 4), state + 1)  # 5 and 6 only end episodes
    log = vf.Transitions.from_arrays(state, np.ones(60), episode=np.arange(60) // 5, next_observation=following)
    notes = vf.evaluate(log, penalty=0.1, starts=[0, 6], features=lambda x: np.eye(7)[x]).notes
    assert any("like those of 20.0% of the next observations and 50.0% of the starts: their" in note for note in notes)
    inside = vf.evaluate(log, penalty=0.1, starts=[0, 4], features=lambda x: np.column_stack([np.ones(len(x)), x]))
    assert not any("guesses" in note for note in inside.notes)
    ring = vf.Transitions.from_arrays(state, np.ones(60), episode=np.arange(60) // 20, next_observation=(state + 1) % 5)
    assert not any("guesses" in note for note in vf.evaluate(ring, penalty=0.1).notes)


def test_an_interrupted_solve_is_reported_with_its_solver_error():
    found = vf.evaluate(log_of(), penalty=0.3, solver="gtd2", callback=lambda progress: True, **SETTINGS)
    assert found.result.status == "interrupted"
    assert found.policy_value.solver_error > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": 0.1, "ridge": 0.1}, "penalty and ridge are both given"),
        ({"penalty": -1}, "penalty is -1; it must be 0, or a number"),
        ({"penalty": float("inf")}, "penalty is inf"),
        ({"penalty": "large"}, "penalty is 'large'"),
        ({"penalty": 0.1, "solver": "ctd"}, "ridge"),
        ({"penalty": 0.1, "discount": 2}, "discount is 2"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        vf.evaluate(log_of(), features="fourier:order=1", **settings)


# ---- bias and coverage ---------------------------------------------------------------------------------------


def slow_process(seed):
    """20 episodes of x' = 0.9 x + 0.4 noise with rewards of sin(2 x) and noise."""
    rng = np.random.default_rng([seed, 1])
    x = rng.normal(size=(20, 31))
    for t in range(30):
        x[:, t + 1] = 0.9 * x[:, t] + 0.4 * x[:, t + 1]
    reward = np.sin(2 * x[:, :-1]) + 0.5 * rng.normal(size=(20, 30))
    return vf.Transitions.from_arrays(
        x[:, :-1].reshape(-1, 1), reward.ravel(), episode=np.repeat(np.arange(20), 30),
        next_observation=x[:, 1:].reshape(-1, 1),
    )  # fmt: skip


def true_value(start, discount=0.9):
    """Of `slow_process`: sin(2 x) has the mean sin(2 m) exp(-2 s^2) for a normal x."""
    t = np.arange(200)
    variance = 0.16 * (1 - 0.9 ** (2 * t)) / (1 - 0.81)
    return float(np.sum(discount**t * np.sin(2 * start * 0.9**t) * np.exp(-2 * variance)))


def simulated(logs):
    """Errors before and after the correction, and whether intervals cover, of this many logs."""
    truth, found = true_value(1.0), []
    for seed in range(logs):
        fit = fit_of(slow_process(seed), features="fourier:order=15", discount=0.9, penalty=0.01, starts=[[1.0]])
        first = fit.errors.sandwich.first
        low, high = fit.value.interval
        found.append((fit.starts.c @ first.theta - truth, fit.value.estimate - truth, low <= truth <= high))
    return np.array(found).T


def test_the_correction_removes_most_of_the_bias():
    before, after, covered = simulated(16)
    assert before.mean() < -0.2
    assert abs(after.mean()) < 0.6 * abs(before.mean())
    assert covered.mean() >= 0.75


@pytest.mark.slow
def test_intervals_of_corrected_values_cover():
    before, after, covered = simulated(300)
    assert before.mean() < -0.4
    assert abs(after.mean()) < 0.3 * abs(before.mean())
    assert 0.92 <= covered.mean() <= 0.99
