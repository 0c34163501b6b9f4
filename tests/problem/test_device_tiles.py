"""Problems over tile-coded rows on torch tensors: products, solvers and evaluations are those in memory."""

import numpy as np
import pytest
import scipy.sparse as sparse
import torch

import valuefit as vf
from helpers.devices import trajectory_log
from valuefit import memory as memory_module
from valuefit.features import Tiles
from valuefit.problem import preconditioner
from valuefit.problem.device import DeviceProblem
from valuefit.problem.exact import Exact
from valuefit.problem.placement import Placement
from valuefit.problem.preconditioner import precondition

KINDS = {
    "tiles": {},
    "ratio": {"ratio": True},
    "shuffled": {"shuffled": True},
    "trace": {"trace": 0.6},
    "ridge": {"ridge": 0.01},
    "hashed": {"hashed": 40},
}


def tile_log(kind, n=3000):
    """The index matrix of tiles over two dimensions, its number of columns, and the steps."""
    options = dict(KINDS[kind])
    hashed = options.pop("hashed", None)
    log = trajectory_log(n, 3, **options)
    tiles = Tiles(4, 5, hashed=hashed).fit(log.Phi[:, 1:])
    index = tiles._tile_numbers(log.Phi[:, 1:])
    index = index if hashed is None else tiles._hash(index)
    return index, tiles.transform(log.Phi[:, 1:]), log


def both(kind, n=3000):
    index, rows, log = tile_log(kind, n)
    arguments = log.now, log.next, log.reward, log.discount, log.ratio, log.episode
    options = {"trace": log.trace, "ridge": log.ridge, "columns": rows.shape[1]}
    memory, device = (vf.Problem.from_rows(one, *arguments, **options) for one in (index, torch.from_numpy(index)))
    assert abs(memory.phi.matrix - rows @ sparse.diags_array((abs(rows[log.now]).sum(axis=0) > 0) * 1.0)).max() == 0
    return memory, device


def close(found, expected, rtol=1e-11):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max(initial=0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_products_and_moments_equal_those_in_memory(kind):
    memory, device = both(kind)
    assert isinstance(device, DeviceProblem)
    assert device.traits == memory.traits | {"device"}
    assert "sparse" in device.traits
    assert list(device.dead) == list(memory.dead)
    rng = np.random.default_rng(0)
    theta, w = rng.standard_normal((2, memory.d))
    for found, expected in zip(device.B(theta, w), memory.B(theta, w), strict=True):
        close(found, expected)
    for found, expected in zip(device.moments(), memory.moments(), strict=True):
        close(found, expected)
    close(device.dual_squares, memory.dual_squares)
    close(device.mean_squares(theta, w), memory.mean_squares(theta, w))


@pytest.mark.parametrize("solver", ["lstd", "krylov", "auto", "pdbg", "svrg"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_certified_gap_holds_on_the_problem_in_memory(kind, solver):
    memory, device = both(kind)
    found = vf.solve(device, solver, tol=1e-6)
    assert found.status == "converged"
    assert Exact(memory).gap(found.theta) <= 1.001 * found.gap + 1e-20  # but for rounding
    assert np.array_equal(vf.solve(device, solver, tol=1e-6).theta, found.theta)  # the same bits


@pytest.mark.parametrize("kind", ["tiles", "ridge"])
def test_krylov_takes_the_preconditioners_that_it_takes_in_memory(kind, monkeypatch):
    monkeypatch.setattr(preconditioner, "MAX_DENSE_PASSES", 0.0)
    memory, device = both(kind)
    found, expected = (precondition(problem) for problem in (device, memory))
    assert type(found) is type(expected) is preconditioner.SparseCholesky
    r = np.random.default_rng(0).standard_normal(memory.d)
    close(found.dual(memory.C_dot(r)), expected.dual(memory.C_dot(r)), rtol=1e-6)
    monkeypatch.setattr(preconditioner, "MAX_SPARSE_PASSES", -1e9)
    found, expected = (precondition(problem) for problem in (device, memory))
    assert type(found) is type(expected) is preconditioner.Diagonal
    close(found.inverse_C, expected.inverse_C)


def test_moments_that_do_not_fit_are_refused(monkeypatch):
    _, device = both("tiles")
    monkeypatch.setattr(memory_module, "memory_limit", lambda: 1000)
    with pytest.raises(MemoryError, match="The moments of 100 features and 100 dual features would take"):
        vf.solve(device, "lstd")


def test_an_evaluation_with_tiles_is_that_in_memory():
    _, _, log = tile_log("tiles")
    rows = log.Phi[log.now][:, 1:]
    ends = np.diff(log.episode, append=-1) != 0
    transitions = vf.Transitions.from_arrays(rows, log.reward, terminated=ends)
    settings = {"features": "tiles:tilings=4,bins=5", "ridge": 1e-3, "solver": "lstd", "discount": 0.9}
    found, expected = (vf.evaluate(transitions, device=device, **settings) for device in ("cpu", None))
    for name in ("estimate", "standard_error"):
        close(getattr(found.policy_value, name), getattr(expected.policy_value, name), rtol=1e-8)
    assert found.verdict.level == expected.verdict.level


def test_tile_coded_rows_beyond_the_memory_of_the_device_are_refused():
    memory, _ = both("tiles")
    with pytest.raises(ValueError, match="and are copied as a whole, but device_memory is 1,000"):
        Placement("cpu", 1000)(memory)
