"""Moments and sketches on a device equal those of plain loops, in blocks of any size."""

import numpy as np
import pytest
import torch

import naive
from helpers.devices import KINDS, device_log
from valuefit.gpu import device_rows as device
from valuefit.gpu.device_moments import cross_moment, gram, mirrored, second_moment, sketch, tensor_cores


@pytest.mark.parametrize("rows_in_block", [7, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_equal_the_sums_of_plain_loops(kind, rows_in_block, monkeypatch):
    monkeypatch.setattr(device, "CPU_BLOCK_BYTES", 8 * 8 * rows_in_block)
    log, phi, psi, steps = device_log(kind, n=130)
    vectors = naive.steps(log)
    A = sum(np.outer(u, v) for u, v, _, _ in vectors)
    C = sum(np.outer(one, one) for _, _, one, _ in vectors)
    np.testing.assert_allclose(cross_moment(phi, psi, steps), A, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(second_moment(psi, steps.visits), C, rtol=1e-11, atol=1e-11)
    single = cross_moment(phi, psi, steps, dtype=torch.float32).numpy()
    assert 0 < np.abs(single - A).max() < 1e-4 * np.abs(A).max()


def test_a_gram_matrix_is_added_by_panels():
    X = torch.randn(30, 600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    C = torch.ones(600, 600, dtype=torch.float64)
    gram(X, C)
    np.testing.assert_allclose(mirrored(C), X.T @ X + 1, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["on-policy", "shuffled"])
@pytest.mark.parametrize("cross", [False, True])
def test_a_sketch_adds_every_step_with_a_sign_to_one_of_the_sums(kind, cross):
    log, _, _, steps = device_log(kind, n=130)
    m, n, size = steps.rows, steps.count, 24
    unit = device.TensorRows(torch.eye(m, dtype=torch.float64))
    found = sketch(unit, unit, steps, size, seed=1, cross=cross)
    sums = found.psi.numpy() * np.sqrt(n)
    np.testing.assert_allclose(np.abs(sums).sum(axis=0), np.bincount(log.now, minlength=m), atol=1e-13)
    assert np.isin(np.round(sums, 12), (-1, 0, 1)).all()
    assert (sums != 0).sum(axis=1).max() <= -(-n // size)
    if cross:
        V = np.array([v for _, v, _, _ in naive.steps(log._replace(Phi=np.eye(m), Psi=np.eye(m)))])
        np.testing.assert_allclose(found.v, found.psi.numpy()[:, log.now] @ V, atol=1e-13)


@pytest.mark.parametrize("kind", ["trace", "shuffled trace"])
def test_a_sketch_with_traces_adds_the_rows_u(kind):
    log, _, _, steps = device_log(kind, n=130)
    unit = device.TensorRows(torch.eye(steps.rows, dtype=torch.float64))
    found = sketch(unit, unit, steps, 24, seed=1, cross=True, traces=True)
    vectors = naive.steps(log._replace(Phi=np.eye(steps.rows), Psi=np.eye(steps.rows)))
    U, V = (np.array([step[part] for step in vectors]) for part in (0, 1))
    of_steps = found.psi.numpy()[:, log.now]
    np.testing.assert_allclose(found.u, of_steps @ U, atol=1e-13)
    np.testing.assert_allclose(found.v, of_steps @ V, atol=1e-13)


def test_the_precision_of_products_is_restored():
    before = torch.backends.cuda.matmul.allow_tf32
    with tensor_cores():
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before
