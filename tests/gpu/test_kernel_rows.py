"""Kernel features computed on a device: the rows, products and solutions of the transformer."""

import itertools

import numpy as np
import pytest
import torch

import valuefit as vf
from valuefit.datasets.example import example_log
from valuefit.features import Kernel
from valuefit.features.kernel import KERNELS
from valuefit.gpu import device_rows as device
from valuefit.gpu.kernel_rows import KernelRows, kernel_values


@pytest.fixture(scope="module")
def log():
    return example_log()


def close(found, expected, rtol=1e-9):
    expected = np.asarray(expected)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("additive", [0.0, 0.4])
@pytest.mark.parametrize("scales", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_and_products_equal_those_of_the_transformer(kernel, scales, additive, log, monkeypatch):
    monkeypatch.setattr(device, "CPU_BLOCK_BYTES", 8 * 21 * 100)  # blocks of 100 rows
    observations = log.observations[:350]
    fitted = Kernel(20, kernel, additive=additive, scales=scales).fit(observations)
    rows, expected = KernelRows(fitted, observations, "cpu"), fitted.transform(observations)
    # the root of a squared distance of 0 up to rounding, 1e-16, is 1e-8, and k(x, x) of this kernel deviates by that
    rtol = 1e-6 if kernel == "laplace" else 1e-9
    assert rows.shape == expected.shape
    close(rows.read(slice(90, 210)), expected[90:210], rtol)
    close(rows.read(torch.tensor([3, 300, 3])), expected[[3, 300, 3]], rtol)
    rng = np.random.default_rng(0)
    for shape in ((), (2,)):
        x, a = rng.standard_normal((rows.shape[1], *shape)), rng.standard_normal((350, *shape))
        close(rows.dot(torch.from_numpy(x)), expected @ x, rtol)
        close(rows.tdot(torch.from_numpy(a)), expected.T @ a, rtol)


@pytest.mark.parametrize("solver", ["lstd", "krylov", "pdbg"])
@pytest.mark.parametrize("trace", [0.0, 0.6])
def test_the_solution_is_that_of_stored_rows(solver, trace, log):
    fitted = Kernel(25).fit(log.observations)
    expected = vf.Problem(log, fitted, discount=0.95, trace=trace, ridge=0.01)
    problem = vf.Problem.from_kernel(log, fitted, device="cpu", discount=0.95, trace=trace, ridge=0.01)
    found, best = vf.solve(problem, solver, tol=1e-10), vf.solve(expected, "lstd")
    assert found.status == "converged"
    rows = fitted.transform(log.observations[log.now])
    scale = np.abs(rows @ best.theta).max()
    assert np.abs(rows @ (found.theta - best.theta)).max() <= 1e-4 * scale
    if solver == "lstd":
        close(found.theta, best.theta, rtol=1e-8)


def test_triton_gives_the_same_values(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from valuefit.gpu import triton_kernels

    squares = torch.tensor([[0.0, 0.3, 2.0], [-1e-18, 5.0, 900.0]], dtype=torch.float64)
    for kind, scales in itertools.product(range(len(KERNELS)), (1, 3)):
        found, expected = (torch.nn.functional.pad(squares, (1, 0)) for _ in range(2))
        triton_kernels.kernel_values(found[:, 1:], kind, scales, 3.0)
        kernel_values(expected[:, 1:], kind, scales, 3.0)
        close(found, expected, rtol=1e-14)


def test_only_fitted_kernels_are_taken(log):
    with pytest.raises(ValueError, match="kernel is 'kernel'; it must be a fitted"):
        vf.Problem.from_kernel(log, "kernel", device="cpu")
    with pytest.raises(ValueError, match="fit"):
        vf.Problem.from_kernel(log, Kernel(5), device="cpu")
    assert KERNELS == ("matern", "gaussian", "laplace")  # the order that the compiled kernel knows
