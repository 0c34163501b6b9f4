import numpy as np
import pytest

from valuefit.inference.clusters import ClusterSums, clusters


def test_one_episode_is_cut_into_blocks():
    for n, count in ((24, 1), (25, 5), (1000, 31)):
        cluster, found, blocks = clusters(np.full(n, 7))
        assert (found, blocks) == (count, count > 1)
        assert len(np.unique(cluster)) == count
    cluster, found, blocks = clusters(np.array([4, 4, 9]))
    assert (cluster.tolist(), found, blocks) == ([0, 0, 1], 2, False)


@pytest.mark.parametrize(
    "cluster", [[0, 0, 0, 2, 2, 5], [2, 2, 0, 0, 5], [0, 2, 0, 5, 2], [5], []], ids=["runs", "moved", "mixed", "1", "0"]
)
def test_sums_over_clusters_and_their_numbers_by_step(cluster):
    own, values = np.array(cluster, np.int64), np.arange(1.0, 1 + len(cluster))
    of_cluster, sums = np.arange(7) + 0.5, ClusterSums(own, 7)
    np.testing.assert_array_equal(sums.of(values), [sum(values[own == one]) for one in range(7)])
    np.testing.assert_array_equal(sums.spread(of_cluster), [of_cluster[one] for one in cluster])
