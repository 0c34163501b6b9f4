import numpy as np
import pytest

from valuefit.inference.clusters import Clusters


def test_one_episode_is_cut_into_blocks():
    for n, count in ((24, 1), (25, 5), (1000, 31)):
        found = Clusters.of_log(np.full(n, 7))
        assert (found.count, found.blocks) == (count, count > 1)
        assert len(np.unique(found.of_step)) == count
    found = Clusters.of_log(np.array([4, 4, 9]))
    assert (found.of_step.tolist(), found.count, found.blocks) == ([0, 0, 1], 2, False)


@pytest.mark.parametrize(
    "cluster", [[0, 0, 0, 2, 2, 5], [2, 2, 0, 0, 5], [0, 2, 0, 5, 2], [5], []], ids=["runs", "moved", "mixed", "1", "0"]
)
def test_sums_over_clusters_and_their_numbers_by_step(cluster):
    own, values = np.array(cluster, np.int64), np.arange(1.0, 1 + len(cluster))
    of_cluster, clusters = np.arange(7) + 0.5, Clusters(own, 7)
    np.testing.assert_array_equal(clusters.sums(values), [sum(values[own == one]) for one in range(7)])
    np.testing.assert_array_equal(clusters.spread(of_cluster), [of_cluster[one] for one in cluster])
