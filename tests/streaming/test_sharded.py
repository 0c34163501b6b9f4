from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import in_shards, log_with_actions
from valuefit.data import shards
from valuefit.features.registry import Fitted, make
from valuefit.precondition.factor import rows_per_sum
from valuefit.streaming.parts import Parts
from valuefit.streaming.sharded import ShardedProblem


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


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
