"""The Triton kernels, run by Triton's interpreter on the CPU: the same sums as torch's products."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are declared

import numpy as np
import pytest
import torch

from helpers.devices import device_log
from valuefit.gpu import device_moments, triton_kernels
from valuefit.gpu.device_moments import kernels_of


@pytest.mark.parametrize("parts", [1, 5, 1000])
@pytest.mark.parametrize("float32", [False, True])
def test_a_sweep_equals_two_products(parts, float32, monkeypatch):
    monkeypatch.setattr(triton_kernels, "PARTS", parts)
    _, phi, _, steps = device_log("ratio", n=45, d=5, length=7)
    if float32:
        phi.matrix = phi.matrix.float()
    exact = phi.matrix.double()
    rng = torch.Generator().manual_seed(0)
    theta, w = torch.randn(2, 5, generator=rng, dtype=torch.float64)
    a = steps.difference_transposed(steps.forward(exact @ w))
    c = steps.backward(steps.difference(exact @ theta) - steps.reward)
    of_theta, of_w = triton_kernels.sweep(phi, steps, theta, w, steps.reward, steps.live)
    np.testing.assert_allclose(of_theta, exact.T @ a, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(of_w, exact.T @ (c + steps.live * (exact @ w)), rtol=1e-11, atol=1e-11)
    none, of_w = triton_kernels.sweep(phi, steps, theta, None, steps.reward, steps.live)
    assert none is None
    np.testing.assert_allclose(of_w, exact.T @ c, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["ratio", "trace", "dual"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_moments_equal_those_of_torch(kind, dtype, monkeypatch):
    _, phi, psi, steps = device_log(kind, n=45, d=5, length=7)
    expected = device_moments.cross_moment(phi, psi, steps)
    monkeypatch.setattr(device_moments, "kernels_of", lambda *rows: triton_kernels)
    monkeypatch.setattr(triton_kernels, "VALUES_PER_PROGRAM", 4)
    found = device_moments.cross_moment(phi, psi, steps, dtype=dtype)
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["ratio", "shuffled", "dual"])
@pytest.mark.parametrize("cross", [False, True])
def test_a_sketch_equals_that_of_torch(kind, cross, monkeypatch):
    _, phi, psi, steps = device_log(kind, n=45, d=5, length=7)
    expected = device_moments.sketch(phi, psi, steps, 9, seed=3, cross=cross)
    monkeypatch.setattr(device_moments, "kernels_of", lambda *rows: triton_kernels)
    found = device_moments.sketch(phi, psi, steps, 9, seed=3, cross=cross)
    np.testing.assert_allclose(found.psi, expected.psi, rtol=1e-13, atol=1e-14)
    assert (found.v is None) == (not cross)
    if cross:
        np.testing.assert_allclose(found.v, expected.v, rtol=1e-13, atol=1e-14)


def test_rows_on_the_cpu_are_read_without_kernels():
    _, phi, psi, _ = device_log("dual", n=45, d=300, length=7)
    assert kernels_of(phi, psi) is None
