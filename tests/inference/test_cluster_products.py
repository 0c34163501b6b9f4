"""Products by cluster: with compiled kernels, and with a copy of the rows on a device, both equal plain loops."""

import numpy as np
import pytest
import torch

import naive
from helpers.devices import KINDS, both, trajectory_log
from valuefit.gpu import device_rows as device
from valuefit.gpu.on_device import Placement
from valuefit.inference import cluster_products
from valuefit.inference.cluster_products import cluster_dots, cluster_sums


@pytest.mark.parametrize("where", ["memory", "device"])
@pytest.mark.parametrize("kind", ["on-policy", "shuffled", "dual", "float32"])
def test_products_by_cluster_equal_plain_loops(kind, where, monkeypatch):
    monkeypatch.setattr(device, "CPU_BLOCK_BYTES", 8 * 8 * 70)  # blocks that end within clusters
    memory, _ = both(kind)
    vectors = naive.steps(trajectory_log(**KINDS[kind]))
    V = np.array([step[1] for step in vectors])
    psi = memory.psi.matrix[memory.now].astype(np.float64)
    rng = np.random.default_rng(0)
    cluster = rng.permutation(np.arange(memory.n) // 50 % 12)  # in any order
    parts = [np.flatnonzero(cluster < 5), np.flatnonzero(cluster == 7)]  # some clusters only
    inside = (cluster < 5) | (cluster == 7)
    X, Y = rng.standard_normal((12, memory.d)), rng.standard_normal((12, memory.k))
    a, c = rng.standard_normal((2, memory.n))
    with Placement(torch.device("cpu")) as place:
        if where == "device":
            place(memory)
            monkeypatch.setattr(cluster_products, "_kernel_rows", None)  # not used
        p, q = cluster_dots(memory, cluster, parts, X, Y)
        of_v, of_psi = cluster_sums(memory, cluster, 12, parts, a, c)
        nothing, alone = cluster_sums(memory, cluster, 12, parts, None, c)
    np.testing.assert_allclose(p, inside * (V * X[cluster]).sum(axis=1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(q, inside * (psi * Y[cluster]).sum(axis=1), rtol=1e-10, atol=1e-12)
    expected = np.zeros((2, 12, memory.k))
    np.add.at(expected[0, :, : memory.d], cluster[inside], (a[:, None] * V)[inside])
    np.add.at(expected[1], cluster[inside], (c[:, None] * psi)[inside])
    np.testing.assert_allclose(of_v, expected[0, :, : memory.d], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(of_psi, expected[1], rtol=1e-10, atol=1e-12)
    assert nothing.shape == (0, memory.d)
    np.testing.assert_array_equal(alone, of_psi)
