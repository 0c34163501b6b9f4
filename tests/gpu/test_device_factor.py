"""The preconditioner on a device: the inverses that the host computes, and the host where pivots are needed."""

import numpy as np
import pytest
import torch

import valuefit as vf
from helpers.devices import both
from valuefit.gpu.device_factor import DeviceFactor, inverse_cholesky
from valuefit.precondition.factor import DenseFactor, dense_preconditioner, sketch
from valuefit.precondition.preconditioner import SaddlePreconditioner, precondition

KINDS = ["on-policy", "trace", "ridge", "dual ridge trace", "identity"]


def close(found, expected, rtol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_from_all_rows_it_is_the_inverse_that_the_host_computes(kind):
    memory, device = both(kind, n=900, d=8)
    cross = kind != "on-policy"
    found = device.dense_factor(10_000, cross=cross)
    expected = dense_preconditioner(memory, sketch(memory, size=10_000, cross=cross))
    assert isinstance(found, SaddlePreconditioner)
    assert found.excess == found.likely == expected.excess == 1.0
    rng = np.random.default_rng(0)
    g, r = rng.standard_normal(memory.d), rng.standard_normal(memory.k)
    dual = expected.dual(r)
    close(found.dual(r), dual)
    if memory.shared and memory.ridge == 0:
        close(found.fixed_point(r, dual), expected.fixed_point(r, dual))
        return
    close(found.primal(g), expected.primal(g))
    for one, other in zip(found.saddle(g, r, dual), expected.saddle(g, r, dual), strict=True):
        close(one, other)


@pytest.mark.parametrize("cross", [False, True])
def test_of_sketched_rows_it_bounds_c(cross):
    memory, device = both("on-policy", n=6000, d=10)
    found = device.dense_factor(400, cross=cross)
    assert found.excess == 15.0  # 6000 steps in 400 sums
    C_tilde = np.linalg.inv(np.column_stack([found.dual(column) for column in np.eye(10)]))
    largest = np.linalg.eigvals(np.linalg.solve(memory.C, C_tilde)).real.max()
    assert largest <= found.likely <= found.excess


@pytest.mark.parametrize(
    "S",
    [
        torch.ones(3, 3, dtype=torch.float64),
        torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)),
        torch.diag(torch.tensor([1.0, 1e-13], dtype=torch.float64)),
    ],
)
def test_columns_that_may_be_dependent_have_no_inverse_factor(S):
    assert inverse_cholesky(S) is None


def test_dependent_columns_are_left_to_the_host():
    memory, _ = both("on-policy", n=4000, d=8)
    rows = torch.from_numpy(np.column_stack([memory.phi.matrix, memory.phi.matrix[:, 1]]))
    arguments = memory.now, memory.next, memory.reward, memory.discount
    device = vf.Problem.from_rows(rows, *arguments, episode=np.cumsum(memory.begins))
    assert isinstance(precondition(device), DenseFactor)
    found = vf.solve(device, "krylov", tol=1e-8)
    assert found.status == "converged"


def test_independent_columns_stay_on_the_device():
    _, device = both("on-policy", n=4000, d=8)
    assert isinstance(precondition(device), DeviceFactor)
