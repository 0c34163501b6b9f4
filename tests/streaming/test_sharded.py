from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import even_policy, in_shards, log_with_actions
from valuefit.data import shards
from valuefit.features.registry import Fitted, make
from valuefit.policies.importance import with_ratios
from valuefit.policies.policy import find_policy
from valuefit.precondition.factor import rows_per_sum
from valuefit.streaming.parts import Parts
from valuefit.streaming.sharded import ShardedProblem


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


def sharded(
    log: vf.Transitions, features: Any, folder: Path, *, steps: int = 4000, trace: float = 0.0, discount: float = 0.95
) -> tuple[ShardedProblem, vf.Problem]:
    """A problem in shards of about so many steps, and in memory."""

    def part(piece: vf.Transitions) -> vf.Problem:
        return vf.Problem(piece, features, discount=discount, trace=trace, part=True)

    parts = Parts(in_shards(log, folder, "native", steps=steps).shards, part, steps)
    whole = vf.Problem(log, features, discount=discount, trace=trace)
    return ShardedProblem(parts, trace=trace, discount=discount, ridge=0.0), whole


def autoregression() -> vf.Transitions:
    x = vf.datasets.ar1_log(20_000, dimensions=2).observations[:20_000]
    return vf.Transitions.from_arrays(x, x[:, 0], terminated=np.arange(len(x)) % 50 == 49)


def problems(folder: Path, *, trace: float = 0.0, ridge: float = 0.0) -> tuple[ShardedProblem, vf.Problem]:
    """The same problem in shards and in memory."""
    log = log_with_actions()
    fitted, _ = make("fourier:order=2", log)

    def part(piece: vf.Transitions, features: Fitted = fitted) -> vf.Problem:
        return vf.Problem(piece, features, discount=0.9, trace=trace, ridge=ridge, part=True)

    parts = Parts(in_shards(log, folder, "native").shards, part, 100)
    whole = vf.Problem(log, fitted, discount=0.9, trace=trace, ridge=ridge)
    return ShardedProblem(parts, trace=trace, discount=0.9, ridge=ridge), whole


@pytest.mark.parametrize(("trace", "ridge"), [(0.0, 0.0), (0.8, 0.1)])
def test_products_are_those_of_the_log_in_memory(trace: float, ridge: float, tmp_path: Path) -> None:
    found, whole = problems(tmp_path, trace=trace, ridge=ridge)
    rng = np.random.default_rng(0)
    theta, w = rng.normal(size=whole.d), rng.normal(size=whole.d)
    close = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(found.b, whole.b, **close)
    np.testing.assert_allclose(found.A, whole.A, **close)
    np.testing.assert_allclose(found.C, whole.C, **close)
    np.testing.assert_allclose(found.dual_squares, whole.dual_squares, **close)
    np.testing.assert_allclose(found.A_dot(theta), whole.A_dot(theta), **close)
    np.testing.assert_allclose(found.At_dot(w), whole.At_dot(w), **close)
    np.testing.assert_allclose(found.C_dot(w), whole.C_dot(w), **close)
    np.testing.assert_allclose(found.residual(theta), whole.residual(theta), **close)
    for one, other in zip(found.B(theta, w), whole.B(theta, w), strict=True):
        np.testing.assert_allclose(one, other, **close)
    np.testing.assert_allclose(found.mean_squares(theta, w), whole.mean_squares(theta, w), **close)
    np.testing.assert_allclose(found.reward_squares(), whole.reward_squares(), **close)
    assert found.traits == whole.traits | {"shards"}


def test_the_sketch_estimates_the_moments_within_its_bound(tmp_path: Path) -> None:
    found, whole = problems(tmp_path)
    size = 20 * whole.d
    many = [found.sketched_moments(size, np.random.default_rng(seed), cross=True) for seed in range(60)]
    mean_C, mean_A = (np.mean([pair[place] for pair in many], axis=0) for place in (0, 1))
    assert np.linalg.norm(mean_C - whole.C) <= 0.09 * np.linalg.norm(whole.C)
    assert np.linalg.norm(mean_A - whole.A) <= 0.09 * np.linalg.norm(whole.A)
    bound = rows_per_sum(found, size, cross=True)
    for C, _ in many[:20]:  # C~ <= bound * C
        assert np.linalg.eigvalsh(bound * whole.C - C).min() >= -1e-10 * bound


def test_pdbg_on_moments_needs_given_steps(tmp_path: Path) -> None:
    found, _ = problems(tmp_path)
    with pytest.raises(ValueError, match="precompute=True"):
        vf.solve(found, vf.solvers.PDBG(precompute=True))


def svrg_cases() -> dict[str, Any]:
    """Log and features: repeated states, heavy tails of the rows, importance ratios, traces."""
    mdp, log, actions = vf.datasets.random_mdp(seed=0), autoregression(), log_with_actions(600)
    ratios = with_ratios(actions, find_policy(even_policy, allow_code=True))
    return {
        "random MDP": (mdp.log(20_000), mdp.rows, 0.0),
        "kernel": (log, make("kernel:landmarks=60", log)[0], 0.0),
        "ratios": (ratios, make("fourier:order=4", ratios)[0], 0.0),
        "traces": (log, make("fourier:order=4", log)[0], 0.7),
    }


@pytest.mark.parametrize(
    "case",
    ["ratios", *(pytest.param(case, marks=pytest.mark.slow) for case in ("random MDP", "kernel", "traces"))],
)
def test_svrg_on_shards_takes_at_most_a_third_more_passes(case: str, tmp_path: Path) -> None:
    log, features, trace = svrg_cases()[case]
    found, whole = sharded(log, features, tmp_path, trace=trace)
    best, start = whole.objective(vf.solve(whole, "lstd").theta), whole.objective(np.zeros(whole.d))
    passes = np.zeros(2)
    for tol, seed in itertools.product((1e-6, 1e-9), (0, 1)):
        here, memory = (vf.solve(problem, "svrg", tol=tol, seed=seed) for problem in (found, whole))
        assert (here.status, memory.status) == ("converged", "converged")
        assert whole.objective(here.theta) - best <= tol * (start - best)
        passes += here.passes, memory.passes
    assert passes[0] <= 1.3 * passes[1]  # measured: 1.18, 1.17, 1.08 and 1.26, with two passes for the copy


def test_svrg_on_shards_gives_the_same_bits_for_the_same_seed(tmp_path: Path) -> None:
    log = log_with_actions()
    features, _ = make("tiles:tilings=4", log)
    found = []
    for number, seed in enumerate((1, 1, 2)):
        (tmp_path / str(number)).mkdir()
        problem, _ = sharded(log, features, tmp_path / str(number), steps=300)
        found.append(vf.solve(problem, "svrg", tol=1e-6, seed=seed))
    assert [one.status for one in found] == ["converged"] * 3
    np.testing.assert_array_equal(found[0].theta, found[1].theta)
    assert not np.array_equal(found[0].theta, found[2].theta)


def test_svrg_on_shards_takes_given_steps(tmp_path: Path) -> None:
    found, whole = problems(tmp_path)
    given = {"step_theta": 0.02, "step_w": 0.02}
    here = vf.solve(found, vf.solvers.SVRG(**given), tol=0, max_passes=60)
    memory = vf.solve(whole, vf.solvers.SVRG(**given), tol=0, max_passes=60)
    assert whole.objective(here.theta) <= 1.5 * whole.objective(memory.theta)
    assert here.passes - memory.passes <= 2.5
    for solver in (vf.solvers.SVRG(steps="theorem"), vf.solvers.SVRG(step_theta=0.1)):
        with pytest.raises(ValueError, match=r"need.* rows in memory|need them in memory"):
            vf.solve(found, solver)


def test_svrg_refuses_moments() -> None:
    moments = vf.Moments("fourier:order=2", discount=0.9)
    moments.add(log_with_actions())
    with pytest.raises(ValueError, match=r"Single steps cannot be drawn|rows cannot be sketched"):
        vf.solve(moments.problem(), "svrg")
