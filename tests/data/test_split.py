"""`split` divides a log into whole episodes, or whole clusters of them, by their numbers and the seed alone."""

from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import log_with_actions


def many(episodes=40, cluster=None, offset=0.0):
    """Episodes of 1 to 5 steps."""
    lengths = np.resize([1, 2, 3, 4, 5], episodes)
    episode = np.repeat(np.arange(episodes), lengths)
    n = len(episode)
    return vf.Transitions.from_arrays(
        np.arange(float(n)) + offset, np.arange(float(n)), terminated=np.append(np.diff(episode) != 0, True),
        episode=episode, cluster=None if cluster is None else np.asarray(cluster)[episode],
    )  # fmt: skip


def sides(log, *arguments, **settings):
    """The episodes of both logs."""
    return [part.episodes.tolist() for part in vf.split(log, *arguments, **settings)]


@pytest.mark.parametrize(("share", "count"), [(0.5, 20), (0.8, 32), (0.01, 1), (0.99, 39)])
def test_split_keeps_episodes_whole_and_drops_none(share, count):
    log = many()
    left, right = vf.split(log, share, seed=1)
    assert len(left.episodes) == count
    assert sorted([*left.episodes, *right.episodes]) == list(range(40))
    for part in (left, right):
        expected = log.select(part.episodes)
        np.testing.assert_array_equal(part.reward, expected.reward)
        np.testing.assert_array_equal(part.begins, expected.begins)
        np.testing.assert_array_equal(part.observations[part.now], expected.observations[expected.now])
    assert len(left) + len(right) == len(log)


def test_clusters_stay_together():
    cluster = np.arange(40) // 3  # 14 clusters
    log = many(cluster=cluster)
    left, right = vf.split(log, 0.3)
    assert set(left.cluster).isdisjoint(right.cluster)
    assert len(set(left.cluster)) == 4  # 0.3 of 14
    assert len(left) + len(right) == len(log)


def test_the_draw_depends_on_numbers_and_seed_alone():
    assert sides(many()) == sides(many(offset=7.0)) == sides(replace(many(), reward=-many().reward))
    assert sides(many(), seed=3) != sides(many(), seed=4)
    backwards = np.concatenate([np.flatnonzero(many().episode == one) for one in range(39, -1, -1)])
    assert [sorted(side) for side in sides(many()[backwards])] == sides(many())


def test_names_of_episodes_and_actions_are_kept():
    log = vf.load({"obs": np.arange(4.0), "reward": np.ones(4), "terminated": np.ones(4), "episode": list("dcba"),
                   "action": ["x", "y", "y", "y"]})  # fmt: skip
    for part in vf.split(log):
        assert part.action_names.tolist() == ["x", "y"]
        assert set(part.episode_names[part.episode]) <= set("abcd")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, 1.5, np.nan])
def test_a_share_that_leaves_one_side_empty_is_refused(share):
    with pytest.raises(ValueError, match=f"share is {share}; it must lie strictly between 0 and 1"):
        vf.split(many(), share)


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match=r"The log has a single episode, which is not divided\. Give a log of at le"):
        vf.split(many(1))
    with pytest.raises(ValueError, match="single cluster of episodes, which is not divided"):
        vf.split(many(cluster=np.zeros(40, int)))
    assert sides(many(2)) in ([[0], [1]], [[1], [0]])  # what the message asks for
    with pytest.raises(ValueError, match="split takes a Transitions, not ShardedLog: load the log, or part of it"):
        vf.split(vf.load(log_with_actions(5), memory="stream"))
    with pytest.raises(ValueError, match=r"seed is -1"):
        vf.split(many(), seed=-1)
