"""Intervals of values and differences of policy values of a log in shards are those of the log in memory.

Samples are made so small that what is not summed over all shards would be missed.
"""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import even_policy, in_shards, log_with_actions
from valuefit.data import shards
from valuefit.evaluation import streamed
from valuefit.features import registry
from valuefit.inference import adjoints, errors, jackknife, sensitivity
from valuefit.rows import compile

KINDS = ("memory", "native", "parquet")
FOURIER = {"features": "fourier:order=3"}
OTHER = {"features": "kernel:landmarks=12", "policy": even_policy}


@pytest.fixture(autouse=True)
def small_shards_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)
    monkeypatch.setattr(registry, "MAX_FIT_STEPS", 600)
    monkeypatch.setattr(streamed, "MAX_SAMPLE_STEPS", 600)


@pytest.fixture(scope="module")
def log() -> vf.Transitions:
    return log_with_actions()


def in_parts(sharded: Any, **settings: Any) -> vf.Evaluation:
    """The evaluation of a log in shards, of which it holds a sample only."""
    found = vf.evaluate(sharded, discount=0.9, **settings)
    assert found.sampled
    assert len(found.log) <= 600 < found.size[0]
    return found


def in_memory(log: vf.Transitions, **settings: Any) -> vf.Evaluation:
    return vf.evaluate(log, discount=0.9, tol=1e-12, **settings)


def simultaneous(evaluation: vf.Evaluation, observations: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are few episodes
        return evaluation.value_interval(observations, simultaneous=True, **options)


def assert_same_intervals(found: Any, expected: Any) -> None:
    """To 1e-6 of their widths."""
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    known = np.isfinite(expected).all(axis=1)
    assert known.any()
    assert (np.abs(found[known] - expected[known]) <= 1e-6 * np.diff(expected[known], axis=1)).all()


def assert_same_difference(found: Any, expected: Any) -> None:
    assert found.names == expected.names
    assert found.estimate == pytest.approx(expected.estimate, abs=1e-8)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-6)
    assert found.interval == pytest.approx(expected.interval, abs=1e-6 * expected.standard_error)
    assert found.p_value == pytest.approx(expected.p_value, rel=1e-4)


@pytest.mark.parametrize("features", ["fourier:order=3", "tiles:tilings=2,bins=4"])
def test_compiled_updates_of_a_part_keep_to_its_steps(
    features: str, log: vf.Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile, "MIN_COMPILED_NUMBERS", 0)
    monkeypatch.setattr(jackknife, "_max_iterations", lambda *_: 0)  # every episode is left out directly
    settings = {"features": features, "trace": 0.5, "ridge": 0.001, "policy": even_policy}
    found, expected = in_parts(in_shards(log, tmp_path, "native"), **settings), in_memory(log, **settings)
    assert found.policy_value.estimate == pytest.approx(expected.policy_value.estimate, rel=1e-6)
    assert found.policy_value.standard_error == pytest.approx(expected.policy_value.standard_error, rel=1e-6)


# ---- numbered states, other ways to cut ----------------------------------------------------------------------------


def test_states_that_one_episode_or_none_determines_have_infinite_intervals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = rng.integers(0, 6, 2000)
    state[1234] = 7  # in one episode
    ends = np.arange(2000) % 10 == 9
    after = np.where(ends, 0, np.append(state[1:], 0))
    after[-1] = 9  # never left
    log = vf.Transitions.from_arrays(
        state, rng.normal(size=2000), next_observation=after, terminated=ends & (np.arange(2000) < 1999)
    )
    found = in_parts(in_shards(log, tmp_path, "native", steps=100))
    expected = in_memory(log)
    states = np.array([0, 1, 5, 7, 9])
    assert np.isfinite(found.value_interval(states)).all(axis=1).tolist() == [True, True, True, False, False]
    assert_same_intervals(found.value_interval(states), expected.value_interval(states))
    assert_same_intervals(simultaneous(found, states[:3]), simultaneous(expected, states[:3]))


def test_evaluations_of_one_log_in_other_shards_are_compared(log: vf.Transitions, tmp_path: Path) -> None:
    a = in_parts(in_shards(log, tmp_path, "parquet", steps=150), **FOURIER)
    b = in_parts(in_shards(log, tmp_path, "native", limit=64 << 19, steps=333), **OTHER)
    expected = vf.compare(in_memory(log, **FOURIER), in_memory(log, **OTHER))
    assert_same_difference(vf.compare(a, b), expected)
    mirrored = vf.compare(b, a)
    assert mirrored.estimate == -vf.compare(a, b).estimate
    assert mirrored.standard_error == pytest.approx(expected.standard_error, rel=1e-6)
    seen = log.observations[:3]
    assert_same_intervals(a.value_interval(seen), in_memory(log, **FOURIER).value_interval(seen))


def test_a_value_does_not_differ_from_itself(log: vf.Transitions, tmp_path: Path) -> None:
    one = in_parts(in_shards(log, tmp_path, "native"), **FOURIER)
    found = vf.compare(one, one)
    assert (found.estimate, found.standard_error, found.p_value) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("solver", ["krylov", "pdbg"])
def test_iterates_of_matrix_free_solvers_have_intervals_that_contain_their_errors(
    solver: str, log: vf.Transitions, tmp_path: Path
) -> None:
    found = in_parts(in_shards(log, tmp_path, "native"), solver=solver, tol=1e-6, **FOURIER)
    exact, seen = in_memory(log, **FOURIER), log.observations[:10]
    low, high = found.value_interval(seen, level=1e-12).T  # what is left is the solver error
    assert ((low <= exact.value(seen) + 1e-9) & (exact.value(seen) - 1e-9 <= high)).all()
    width = np.diff(exact.value_interval(seen), axis=1)
    assert (np.abs(np.diff(found.value_interval(seen), axis=1) / width - 1) < 0.02).all()


def test_dependent_features_of_a_matrix_free_solver_have_the_intervals_of_the_log_in_memory(
    log: vf.Transitions, tmp_path: Path
) -> None:
    dependent = {"features": lambda x: np.column_stack([np.ones(len(x)), x, x.sum(axis=1)])}
    found = in_parts(in_shards(log, tmp_path, "native"), solver="krylov", tol=1e-14, **dependent)
    expected, seen = in_memory(log, **dependent), log.observations[:10]
    inside, outside = (one.value_interval(seen) for one in (found, expected))
    np.testing.assert_allclose(inside, outside, atol=1e-4 * np.ptp(outside, axis=1).min(), rtol=0)


# ---- what is refused ----------------------------------------------------------------------------------------------


def test_evaluations_that_do_not_belong_together_are_not_compared(log: vf.Transitions, tmp_path: Path) -> None:
    sharded = in_shards(log, tmp_path, "native")
    one = in_parts(sharded, **FOURIER)
    others = {
        "different logs": replace(log, reward=log.reward[::-1])._frozen(),  # of equal length
        "different starts": log,
        "different discounts": log,
    }
    settings: dict[str, dict[str, Any]] = {
        "different starts": {"starts": log.observations[:2]},
        "different discounts": {"discount": 0.8},
    }
    for what, other in others.items():
        options = {"discount": 0.9, **FOURIER, **settings.get(what, {})}
        with pytest.raises(ValueError, match=what):
            vf.compare(one, vf.evaluate(in_shards(other, tmp_path, "memory"), **options))
    with pytest.raises(ValueError, match="different logs"):
        vf.compare(one, in_parts(in_shards(log_with_actions(50), tmp_path, "memory"), **FOURIER))
    with pytest.raises(ValueError, match=r'evaluated in memory\. Evaluate all of them .* memory="stream"'):
        vf.compare(one, in_memory(log, **FOURIER))


def test_the_equations_of_both_must_hold_on_the_log(log: vf.Transitions, tmp_path: Path) -> None:
    """Starts and rewards may add up to the same: a log of other episodes is found all the same."""
    order = np.argsort(np.random.default_rng(0).random(len(log)))
    shuffled = replace(log, reward=log.reward[order])._frozen()
    a, b = (in_parts(in_shards(one, tmp_path, "memory"), **FOURIER) for one in (log, shuffled))
    with pytest.raises(ValueError, match="different logs"):
        vf.compare(a, b)


def test_a_log_that_one_episode_dominates_is_refused_as_it_is_not_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episode = np.repeat(np.arange(8), [10, 10, 10, 10, 10, 3000, 10, 10])
    x = rng.normal(size=(len(episode), 2))
    log = vf.Transitions.from_arrays(x, x[:, 0], episode=episode, terminated=np.diff(episode, append=9) > 0)
    sharded = in_shards(log, tmp_path, "native", steps=100)
    found, other = in_parts(sharded, features="identity"), in_parts(sharded, features="fourier:order=1")
    for asked in (lambda: found.value_interval(x[:2]), lambda: vf.compare(found, other)):
        with pytest.raises(ValueError, match=r'fewer than 2 equal ones.*memory="auto"'):
            asked()


def test_a_loaded_evaluation_says_what_it_has(log: vf.Transitions, tmp_path: Path) -> None:
    one = in_parts(in_shards(log, tmp_path, "native"), **FOURIER)
    loaded = vf.Evaluation.load(one.save(tmp_path / "run.npz"))
    again = vf.Evaluation.load(loaded.save(tmp_path / "again.npz"))
    for found in (loaded, again):
        assert found.to_dict() == one.to_dict()
        assert found.policy_value.interval_at(0.8, "lower") == one.policy_value.interval_at(0.8, "lower")
        assert found.value(log.observations[:5]) == pytest.approx(one.value(log.observations[:5]), rel=1e-12)
        with pytest.raises(ValueError, match=r"sample of its log of 1,968 steps.*Evaluate the log again"):
            found.value_interval(log.observations[:5])
        page = found.report(tmp_path / "report.html", force=True).read_text()
        assert "Standard error of the value" not in page
        assert "Standard error of the value" in one.report(tmp_path / "report.html", force=True).read_text()


def test_a_pickled_evaluation_has_no_log(log: vf.Transitions, tmp_path: Path) -> None:
    one = in_parts(in_shards(log, tmp_path, "native"), **FOURIER)
    copied = pickle.loads(pickle.dumps(one))
    assert copied.policy_value == one.policy_value
    for asked in (lambda: copied.value_interval(log.observations[:2]), lambda: vf.compare(copied, one)):
        with pytest.raises(ValueError, match=r"was pickled.*Evaluate the log again"):
            asked()


def test_too_many_features_for_a_direct_solution_are_refused(
    log: vf.Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adjoints, "ALWAYS_DIRECT_FEATURES", 3)
    monkeypatch.setattr(adjoints, "MAX_DIRECT_PASSES", 0)
    monkeypatch.setattr(errors, "MAX_LISTED_WEIGHTS", 0)  # as with so many features
    sharded = in_shards(log, tmp_path, "native")
    found = in_parts(sharded, solver="krylov", tol=1e-10, **FOURIER)
    with pytest.raises(ValueError, match="Use fewer features, or a log of more episodes"):
        found.value_interval(log.observations[:5])
    exact = in_memory(log, interval="cr1", **FOURIER)
    other = {**FOURIER, "policy": even_policy}
    both = found, in_parts(sharded, solver="krylov", tol=1e-10, **other)
    expected = vf.compare(exact, in_memory(log, interval="cr1", **other))
    assert vf.compare(*both).standard_error == pytest.approx(expected.standard_error, rel=1e-4)


# ---- hidden confounding -------------------------------------------------------------------------------------------


def numbered_log() -> vf.Transitions:
    rng = np.random.default_rng(0)
    state, action, time = rng.integers(0, 5, 4001), rng.integers(0, 2, 4000), np.arange(4000) % 20
    reward = np.round(rng.normal(size=4000), 1) + action * (state[:-1] == 2)
    return vf.Transitions.from_arrays(
        state[:-1], reward, terminated=(time == 19) & (np.arange(4000) % 40 > 20), episode=np.arange(4000) // 20,
        action=action, next_observation=state[1:],
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("starts", [None, np.array([0, 2, 2, 4])])
def test_bounds_under_hidden_confounding_are_those_of_the_log_in_memory(kind: str, starts: Any, tmp_path: Path) -> None:
    log, policy = numbered_log(), np.tile([0.3, 0.7], (5, 1))
    settings = {"policy": policy, "values": "state-action", "starts": starts}
    found = in_parts(in_shards(log, tmp_path, kind, steps=300), **settings)
    expected, odds = in_memory(log, **settings), [1.0, 1.5, 4.0]
    np.testing.assert_allclose(found.sensitivity(odds).lower, expected.sensitivity(odds).lower, rtol=1e-9)
    np.testing.assert_allclose(found.sensitivity(odds).upper, expected.sensitivity(odds).upper, rtol=1e-9)
    other = float(expected.sensitivity(2.0).upper)
    assert found.breakdown(other) == pytest.approx(expected.breakdown(other), rel=1e-9)
    assert found.breakdown(other) == pytest.approx(2.0, rel=1e-3)


def test_too_many_distinct_steps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = numbered_log()
    settings = {"policy": np.tile([0.3, 0.7], (5, 1)), "values": "state-action"}
    found = in_parts(in_shards(log, tmp_path, "native", steps=300), **settings)
    assert len(found._confounded.steps.count) < 2000 < len(log)
    monkeypatch.setattr(sensitivity, "MAX_COUNTED_STEPS", 300)
    again = replace(found)
    with pytest.raises(ValueError, match=r"at most 300 steps that differ.*Round the rewards"):
        again.sensitivity(2.0)
