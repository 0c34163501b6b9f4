import numpy as np

from valuefit.problem.clusters import clusters


def test_one_episode_is_cut_into_blocks():
    for n, count in ((24, 1), (25, 5), (1000, 31)):
        cluster, found, blocks = clusters(np.full(n, 7))
        assert (found, blocks) == (count, count > 1)
        assert len(np.unique(cluster)) == count
    cluster, found, blocks = clusters(np.array([4, 4, 9]))
    assert (cluster.tolist(), found, blocks) == ([0, 0, 1], 2, False)
