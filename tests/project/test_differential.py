"""Random problems through every solver and `evaluate` against NumPy: no false "converged", and a right reference."""

import sys

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.problems import ROOT, problem_of

sys.path.insert(0, str(ROOT))

from fuzz.differential import FAILED, Case, Reference, differential_case, outcomes
from fuzz.outcome import Failure


def case_of(log: naive.Log) -> Case:
    return Case(
        Phi=log.Phi, Psi=None if log.Psi is log.Phi else log.Psi, now=log.now, next=log.next, reward=log.reward,
        discount=log.discount, ratio=log.ratio, episode=log.episode, trace=log.trace, ridge=log.ridge,
        identity=log.identity, storage="dense", tol=1e-8, max_passes=100,
    )  # fmt: skip


def test_no_solver_fails_on_random_problems():
    found = [outcomes(np.random.default_rng([3, number])) for number in range(14)]
    assert not [one for one in found if any(outcome.startswith(FAILED) for outcome in one.values())]
    assert all(one["lstd"] == "converged" and {*one} == {*vf.solvers.names(), "evaluate"} for one in found)


def test_a_case_is_repeated_exactly():
    first, second = (outcomes(np.random.default_rng([3, 7])) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "settings",
    [{}, {"ratio": True, "trace": 0.7}, {"ridge": 0.05}, {"k": 6}, {"identity": True, "ridge": 0.1}],
    ids=str,
)
def test_the_reference_agrees_with_plain_loops(settings):
    log = naive.random_log(np.random.default_rng(4), n=40, d=4, **settings)
    best = naive.minimiser(log)[0]
    reference, zero = Reference(case_of(log)), np.zeros(4)
    for theta in (best, zero, best + 0.1, np.ones(4)):
        excess = naive.objective(log, theta) - naive.objective(log, best)
        expected = excess / (naive.objective(log, zero) - naive.objective(log, best))
        assert [gap for gap, _ in reference.gaps(theta, zero)] == pytest.approx([expected], abs=1e-12)


def test_a_false_converged_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr("valuefit.problem.saddle_point.C_CUTOFF", 0.3)  # takes directions with data for zero
    found = [outcomes(np.random.default_rng([0, number]))["lstd"] for number in range(12)]
    wrong = [number for number, outcome in enumerate(found) if outcome.startswith(f"{FAILED}: converged at tol")]
    assert wrong
    with pytest.raises(Failure, match="lstd: FAILED: converged at tol"):
        differential_case(np.random.default_rng([0, wrong[0]]), tmp_path)


@pytest.mark.parametrize("unit", [1e-12, 1e-3, 1e6])
def test_a_unit_of_a_feature_does_not_change_the_answer(unit):
    log = naive.random_log(np.random.default_rng(5), n=60, d=4)
    one = problem_of(log)
    scaled = problem_of(log._replace(Phi=log.Phi * [1, unit, 1, 1], Psi=log.Phi * [1, unit, 1, 1]))
    expected = one.phi.dot(vf.solve(one, "lstd").theta)
    for solver in ("lstd", "krylov"):
        result = vf.solve(scaled, solver)
        assert result.status == "converged"
        np.testing.assert_allclose(scaled.phi.dot(result.theta), expected, rtol=1e-6, atol=1e-9)
