from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import log_with_actions
from valuefit.data.shards import join_logs

FOURIER: dict[str, Any] = {"features": "fourier:order=2", "discount": 0.9}


class Given:
    """A source of these parts."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def reset(self) -> None:
        self.left = iter(self.parts)

    def next(self) -> Any:
        return next(self.left, None)


def columns_with(*, next_obs: bool, ids: str, episodes: int = 12) -> dict[str, Any]:
    """Columns of a log of short and long episodes; a third terminated, a third were truncated, a third have no end."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 40, episodes)
    episode = np.repeat(np.arange(episodes), lengths)
    last = np.append(np.diff(episode) > 0, True)
    x = rng.normal(size=(len(episode), 2)).cumsum(axis=0) / 10
    after = np.where(last[:, None], x + 0.1, np.roll(x, -1, axis=0))
    columns = {
        "obs": x, "reward": x[:, 0] + rng.normal(size=len(x)), "terminated": last & (episode % 3 == 0),
        "truncated": last & (episode % 3 == 1), "episode": episode,
    }  # fmt: skip
    if next_obs:
        columns["next_obs"] = after
    if ids == "names":
        columns["episode"] = np.array([f"run {(7 * k) % episodes}" for k in range(episodes)])[episode]
    return columns


def cut(columns: dict[str, Any], ends: Any) -> list[dict[str, Any]]:
    bounds = [0, *ends, len(columns["reward"])]
    return [{name: values[a:b] for name, values in columns.items()} for a, b in pairwise(bounds)]


def joined(parts: list[Any]) -> vf.Transitions:
    return join_logs([shard.read() for shard in vf.load(Given(parts)).shards])


def assert_same_steps(found: vf.Transitions, expected: vf.Transitions) -> None:
    for name in ("reward", "terminated", "truncated", "begins"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    numbers = np.cumsum(np.append(True, np.diff(expected.episode) != 0)) - 1
    np.testing.assert_array_equal(found.episode, numbers)
    np.testing.assert_array_equal(found.next < 0, expected.next < 0)
    for rows in ("now", "next"):
        own, other = (getattr(log, rows)[expected.next >= 0] for log in (found, expected))
        np.testing.assert_array_equal(found.observations[own], expected.observations[other])


@pytest.mark.parametrize("ids", ["numbers", "names"])
@pytest.mark.parametrize("next_obs", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_episodes_that_are_cut_anywhere_are_those_of_the_whole_log(seed: int, next_obs: bool, ids: str) -> None:
    columns = columns_with(next_obs=next_obs, ids=ids)
    n, rng = len(columns["reward"]), np.random.default_rng(seed)
    ends = np.arange(1, n) if seed == 0 else np.sort(rng.choice(np.arange(1, n), 4 * seed, replace=False))
    parts: list[Any] = cut(columns, ends)
    assert_same_steps(joined(parts), vf.load(columns))
    if next_obs and ids == "numbers":  # also as logs
        parts[::2] = [vf.load(part) for part in parts[::2]]
        assert_same_steps(joined(parts), vf.load(columns))
    for settings in (FOURIER, {**FOURIER, "trace": 0.7}):
        found, expected = vf.evaluate(Given(parts), **settings), vf.evaluate(columns, tol=1e-12, **settings)
        assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
        assert found.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=1e-7)
        assert found.size == expected.size
        assert any("continues in the next part of the iterator" in note for note in found.notes)


def test_slices_of_a_log_are_put_together() -> None:
    log = log_with_actions(20)
    parts = [log[a : a + 37] for a in range(0, len(log), 37)]
    assert_same_steps(joined(parts), log)
    np.testing.assert_array_equal(joined(parts).action, log.action)


@pytest.mark.parametrize("next_obs", [True, False])
def test_ids_may_begin_again_in_every_part_that_is_closed(next_obs: bool) -> None:
    columns = columns_with(next_obs=next_obs, ids="numbers")
    columns["terminated"] |= np.append(np.diff(columns["episode"]) > 0, True) & ~columns["truncated"]
    starts = np.flatnonzero(np.diff(columns["episode"]) > 0) + 1
    parts = cut(columns, starts)  # one episode each
    for part in parts:
        part["episode"] = 0 * part["episode"]
    source = Given([part for part in parts if next_obs or len(part["reward"]) > 1 or part["terminated"].any()])
    assert len(list(vf.load(source).shards)) == len(source.parts)
    found, expected = vf.evaluate(source, **FOURIER), vf.evaluate(columns, tol=1e-12, **FOURIER)
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
    assert found.size == expected.size
    assert not any("iterator" in note for note in found.notes)


def test_the_same_id_after_another_observation_is_refused() -> None:
    parts = cut(columns_with(next_obs=True, ids="numbers"), [])
    for part in (parts[0], vf.load(parts[0])):
        log = vf.load(part).select([2])  # without an end
        with pytest.raises(ValueError, match=r"Part 1 of the iterator begins with episode 2, with which part 0 "):
            vf.evaluate(Given([log, log]), **FOURIER)


def test_without_ids_each_part_ends_its_episode_and_a_note_says_so() -> None:
    columns = columns_with(next_obs=True, ids="numbers")
    del columns["episode"]
    found = vf.evaluate(Given(cut(columns, [50, 100])), **FOURIER)
    assert any("No column numbers the episodes, so the episode at the end of a part" in note for note in found.notes)
    assert found.size[0] == len(columns["reward"])


def test_incomplete_steps_are_left_out_and_not_all_may_be() -> None:
    columns = {"obs": np.arange(4.0), "reward": np.ones(4), "terminated": np.zeros(4), "episode": np.arange(4)}
    with pytest.raises(ValueError, match=r"^No step is left"):
        joined(cut(columns, [2]))
    columns["episode"] = np.array([0, 1, 1, 2])
    np.testing.assert_array_equal(joined(cut(columns, [2])).observations[:1], [1.0])


def test_names_of_states_and_categories_must_be_those_of_the_first_part() -> None:
    def of(names: list[str]) -> dict[str, Any]:
        return {"obs": names, "reward": np.ones(2), "terminated": np.ones(2)}

    for other in (["b", "c"], [0, 1]):
        with pytest.raises(ValueError, match=r"In part 1 of the iterator: Its states .* have other names or types"):
            joined([of(["a", "b"]), of(other)])
    assert joined([of(["a", "b"]), of(["b", "a"])]).observations.tolist() == [0, 1]
