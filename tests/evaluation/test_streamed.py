from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import even_policy, in_shards, log_with_actions
from valuefit.data import joining, shards
from valuefit.data.shards import ShardedLog
from valuefit.engine.loop import solve as solve_problem
from valuefit.evaluation import fitting, streamed
from valuefit.evaluation.streamed import Samples
from valuefit.features import registry
from valuefit.features.registry import make
from valuefit.streaming.parts import PART_COPIES

FOURIER = {"features": "fourier:order=3"}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


def test_episodes_that_continue_in_the_next_file_are_whole(tmp_path: Path) -> None:
    log = log_with_actions(30)
    expected = vf.evaluate([str(file) for file in _files(log, tmp_path)], discount=0.9, **FOURIER)
    found = vf.evaluate(in_shards(log, tmp_path, "files"), discount=0.9, **FOURIER)
    assert found.to_dict()["episodes"] == expected.to_dict()["episodes"]
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
    assert found.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=1e-7)


def _files(log: vf.Transitions, folder: Path) -> list[Path]:
    in_shards(log, folder, "files")
    return sorted(folder.glob("part-*.parquet"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": np.full(10, 0.5)}, "target probabilities by step"),
        ({"cluster": np.zeros(10)}, "clusters of episodes"),
        ({"policy": lambda x, a: np.full(len(x), 0.5), "values": "state-action"}, "a policy that takes actions"),
    ],
)
def test_what_needs_the_whole_log_is_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(10), tmp_path, "native")
    with pytest.raises(ValueError, match=rf'{words}.*Load it with `memory="auto"` and a limit'):
        vf.evaluate(sharded, **{**FOURIER, **settings})


def test_a_sample_of_episodes_is_checked_where_the_log_is_large(tmp_path: Path) -> None:
    log = log_with_actions(60)
    sharded = in_shards(log, tmp_path, "native", limit=8 * PART_COPIES * 16 * 600)
    fitted, _ = make("fourier:order=3", log)
    found = vf.evaluate(sharded, discount=0.9, features=fitted)
    expected = vf.evaluate(log, discount=0.9, tol=1e-12, features=fitted)
    assert found.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=1e-7)
    assert len(found.log) < 0.5 * len(log)
    assert any("Checks and figures are those of a sample of" in note for note in found.notes)
    assert not found.cross_checks
    assert len(expected.cross_checks) == 1
    assert any('need all steps: load the log with `memory="auto"`' in note for note in found.notes)
    assert any("are fitted to those of 492 steps, in memory to those of 1,968:" in note for note in found.notes)
    assert not any("With this limit" in note for note in vf.evaluate(replace(sharded, limit=64 << 20)).notes)
    assert (found.size, found.sampled) == ((len(log), 60), True)
    assert f"{len(log)} steps" in repr(found)
    assert found.value(log.observations[:3]) == pytest.approx(expected.value(log.observations[:3]), rel=1e-6)
    for name in ("skewness", "small-sample bias"):  # of all episodes
        (own,), (other,) = ([check for check in one.checks if check.name == name] for one in (found, expected))
        assert own.statistic == pytest.approx(other.statistic, rel=1e-4)


@pytest.mark.parametrize(("limit", "solves"), [(64 << 20, 1), (8 * PART_COPIES * 16 * 600, 2)])
def test_the_sample_is_solved_by_itself_only_where_the_log_is_larger(
    limit: int, solves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[Any] = []

    def solve(problem: Any, *arguments: Any, **options: Any) -> Any:
        problems.append(problem)
        return solve_problem(problem, *arguments, **options)

    monkeypatch.setattr(fitting, "solve", solve)
    found = vf.evaluate(in_shards(log_with_actions(60), tmp_path, "native", limit=limit), discount=0.9, **FOURIER)
    assert len(problems) == solves
    assert found.sampled == (solves == 2)
    assert (len(found.fit.of_sample.result.theta), found.fit.of_sample.size[0]) == (16, len(found.log))
    same = np.array_equal(found.fit.of_sample.result.theta, found.result.theta)
    assert same == (solves == 1)


def test_a_note_says_why_a_log_in_parts_has_no_jackknife(tmp_path: Path) -> None:
    sharded = in_shards(log_with_actions(30), tmp_path, "native")
    found = vf.evaluate(sharded, discount=0.9, solver="krylov", **FOURIER)
    notes = [note for note in found.notes if note.startswith("The policy value is the mean over the first")]
    assert len(notes) == 1
    assert "over 30 episodes" in notes[0]
    assert ("The jackknife (CR3) was not used" in notes[0]) == (found.policy_value.method == "cr1")


@pytest.mark.parametrize("features", ["kernel:landmarks=20", "fourier:order=3", "auto"])
def test_a_log_longer_than_the_sample_gets_the_same_features_in_memory(
    features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_FIT_STEPS", 600)
    monkeypatch.setattr(streamed, "MAX_SAMPLE_STEPS", 600)
    log = log_with_actions()
    found = vf.evaluate(in_shards(log, tmp_path, "native"), discount=0.9, features=features)
    expected = vf.evaluate(log, discount=0.9, features=features, tol=1e-12)
    assert found.features.sentence == expected.features.sentence
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
    assert found.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=1e-7)


def test_a_shard_in_which_the_target_takes_no_logged_action_counts(tmp_path: Path) -> None:
    log = log_with_actions(40)
    rare = replace(log, action=np.where(log.episode < 30, 0, log.action))._frozen()
    policy = np.array([0.0, 1.0])
    settings = {"discount": 0.9, **FOURIER, "policy": lambda observations: np.tile(policy, (len(observations), 1))}
    found = vf.evaluate(in_shards(rare, tmp_path, "native"), **settings)
    expected = vf.evaluate(rare, tol=1e-12, **settings)
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-6)


def test_samples_depend_on_numbers_of_steps_and_episodes_alone() -> None:
    log = log_with_actions(50)
    one, many, apart = Samples(most=300), Samples(most=300), []
    one.add(log)
    for part in joining.episode_blocks(log, 100):
        apart.append(Samples(most=300, steps=many.steps, episodes=many.episodes))
        apart[-1].add(part)
        many.add(part)
    merged = sum(apart[1:4], apart[0]) + sum(apart[5:], apart[4])  # as in a tree
    for other in (many, merged):
        assert (one.steps, one.episodes) == (other.steps, other.episodes) == (len(log), 50)
        np.testing.assert_array_equal(one.observations(), other.observations())
        np.testing.assert_array_equal(one.log().reward, other.log().reward)
    assert merged.counts == many.counts
    assert len(one.log()) <= 300
    np.testing.assert_array_equal(one.log().episodes, np.arange(len(one.log().episodes)))


def test_a_gap_within_an_episode_does_not_divide_it(tmp_path: Path) -> None:
    log = log_with_actions(30)
    gaps = log[np.arange(len(log)) % 7 != 3]
    assert gaps.begins.sum() > 100
    found = vf.evaluate(in_shards(gaps, tmp_path, "native", steps=20), discount=0.9, trace=0.5, **FOURIER)
    expected = vf.evaluate(gaps, discount=0.9, trace=0.5, tol=1e-12, **FOURIER)
    assert found.policy_value.starts == expected.policy_value.starts
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-8)
    assert found.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=1e-7)


def test_numbered_states_get_a_column_for_every_state_of_the_log(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = np.repeat(np.arange(40), 5) // 4  # later shards have other states
    log = vf.Transitions.from_arrays(states, rng.normal(size=200), terminated=np.tile([0, 0, 0, 0, 1], 40) > 0)
    found = vf.evaluate(in_shards(log, tmp_path, "native", steps=20), discount=0.9)
    expected = vf.evaluate(log, discount=0.9)
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-9)
    assert found.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=1e-7)


def test_features_and_policies_of_the_user_are_called_by_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("valuefit.streaming.parts.thread_count", lambda: 4)
    inside: list[int] = []
    most: list[int] = []

    def slowly(found: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        return found

    log = log_with_actions()
    sharded = in_shards(log, tmp_path, "native", limit=1 << 30)
    vf.evaluate(
        sharded, discount=0.9, features=lambda x: slowly(np.column_stack([np.ones(len(x)), x])),
        policy=lambda x: slowly(even_policy(x)), values="state-action",
    )  # fmt: skip
    assert len(most) > len(sharded.shards)
    assert max(most) == 1


def test_a_nan_in_a_late_shard_is_named_with_file_and_rows(tmp_path: Path) -> None:
    log = log_with_actions(60)
    sharded = in_shards(log, tmp_path, "native")
    observations = np.load(tmp_path / "log" / "observations.npy")
    observations[1500, 1] = np.nan
    np.save(tmp_path / "log" / "observations.npy", observations)
    sharded = replace(sharded, shards=tuple(replace(shard, files=()) for shard in sharded.shards))  # as it is now
    with pytest.raises(ValueError, match=r"In steps [\d,]+ to [\d,]+ of .*log .*NaN"):
        vf.evaluate(sharded, **FOURIER)


def table_log(*, rare: int) -> tuple[vf.Transitions, Any]:
    """20,000 steps over 30 states whose third action only the last episodes take, and a policy that takes all."""
    rng = np.random.default_rng(0)
    state = rng.integers(0, 30, 20_000)
    action = (rng.random(20_000) < 0.5).astype(int)
    action[-2000::rare] = 2
    state[-2000::rare] = np.arange(len(state[-2000::rare])) % 30
    log = vf.Transitions.from_arrays(
        state, np.sin(state) + action + rng.normal(size=20_000), terminated=np.arange(20_000) % 20 == 19, action=action
    )
    return log, np.tile([0.45, 0.45, 0.1], (30, 1))


@pytest.mark.parametrize("limit", [600_000, 64_000_000])
def test_pairs_that_a_small_sample_lacks_are_those_of_the_whole_log(limit: int) -> None:
    log, policy = table_log(rare=31)
    options = {"features": "one-hot", "discount": 0.8, "policy": policy, "values": "state-action"}
    found = vf.evaluate(vf.load(log, memory="stream", limit=limit), **options)
    expected = vf.evaluate(log, **options, tol=1e-12)
    assert found.policy_value.interval == pytest.approx(expected.policy_value.interval, rel=1e-6)
    np.testing.assert_allclose(found.value_interval(np.arange(30)), expected.value_interval(np.arange(30)), rtol=1e-6)
    unseen = [{check.name: check for check in one.checks}["unseen actions"].statistic for one in (found, expected)]
    assert unseen[0] == pytest.approx(unseen[1])


def test_a_small_sample_neither_clears_a_value_nor_rules_it_out_and_the_named_limit_is_enough() -> None:
    log, policy = table_log(rare=3)
    options = {"features": "one-hot", "discount": 0.8, "policy": policy, "values": "state-action"}
    small = vf.evaluate(vf.load(log, memory="stream", limit=600_000), **options)
    size = {check.name: check for check in small.checks}["size of the sample"]
    assert small.verdict.level == "caution"
    assert size.outcome == "warn"
    assert "fail" not in [check.outcome for check in small.checks]
    sampled = [
        check for check in small.checks if check.message.startswith(f"In a sample of {len(small.log):,} steps: ")
    ]
    assert sampled
    assert "pass" not in {check.outcome for check in sampled}
    named = re.search(r"with a limit of (\d+MB) or more", size.message)
    assert named is not None
    found = vf.evaluate(vf.load(log, memory="stream", limit=named[1]), **options)
    outcomes = {check.name: check.outcome for check in found.checks}
    assert outcomes.get("size of the sample", "pass") == "pass"
    assert len(found.log) >= 20 * found.problem.d
    assert found.verdict.level == vf.evaluate(log, **options).verdict.level


def test_a_shard_that_has_other_steps_in_a_later_pass_is_refused() -> None:
    log, reads = log_with_actions(), []

    class Shard:
        def read(self) -> vf.Transitions:
            reads.append(self)
            return log if len(reads) == 1 else log.select(log.episodes[1:])

    sharded = ShardedLog((Shard(),), len(log), 60, "shards that change", 64 << 20)
    with pytest.raises(ValueError, match=r"Shard 0 of the log had [\d,]+ steps in the first pass and now has [\d,]+"):
        vf.evaluate(sharded, discount=0.9, **FOURIER)
