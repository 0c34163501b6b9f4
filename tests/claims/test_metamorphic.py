"""Relations between evaluations of a log and of a changed log, in memory and in shards, by every route and option."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import in_shards, log_with_actions
from valuefit.data import shards
from valuefit.features.registry import make

BASE: dict[str, Any] = {"discount": 0.9, "tol": 1e-10}
FEATURES = ("fourier:order=2", "kernel:landmarks=8", "one-hot")
ROUTES = ("logged", "ratios", "state-action")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "trace": {"trace": 0.6},
    "ridge": {"ridge": 0.01},
    "trace and ridge": {"trace": 0.6, "ridge": 0.01},
    "cr1": {"interval": "cr1"},
    "starts": {"starts": "two"},
}
QUICK = [
    ("logged", "fourier:order=2", "trace"),
    ("ratios", "kernel:landmarks=8", "plain"),
    ("ratios", "one-hot", "starts"),
    ("state-action", "one-hot", "cr1"),
    ("state-action", "fourier:order=2", "trace and ridge"),
]
OTHERS = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in ((route, features, option) for route in ROUTES for features in FEATURES for option in OPTIONS)
    if case not in QUICK
]
STORAGES = ("memory", "shards")
# Checks whose outcome may change with a constant in the rewards, because they measure errors of the values, and it adds
# those of the value of rewards of 1.
ABOUT_REWARDS = {"cross-checks", "features suffice", "returns", "ridge"}
CELLS = 4  # of each number of an observation, where states are numbered

pytestmark = [
    pytest.mark.filterwarnings("ignore:The episodes count as"),
    pytest.mark.parametrize("storage", STORAGES),
    pytest.mark.parametrize(("route", "features", "option"), [*QUICK, *OTHERS]),
]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_SHARD_STEPS", 10)


class Chooser:
    """A policy for numbered or for plain observations; swapped: with the two actions exchanged."""

    def __init__(self, *, numbered: bool, swapped: bool = False) -> None:
        self.numbered, self.swapped = numbered, swapped

    def __call__(self, observations: Any) -> Any:
        x = np.asarray(observations, float)
        share = 0.4 + 0.2 * np.tanh((x - CELLS**2 / 2) / CELLS if self.numbered else x[:, 0])
        both = np.column_stack([1 - share, share])
        return both[:, ::-1] if self.swapped else both


class Case:
    """A log with a route and options, and evaluations of it and of its variants."""

    def __init__(self, route: str, features: str, option: str, storage: str, folder: Path) -> None:
        self.numbered, self.storage, self.folder = features == "one-hot", storage, folder
        self.log, self.route = log_with_actions(50), route
        if self.numbered:
            self.log = numbered(self.log)
        self.options = {**BASE, **OPTIONS[option]}
        if "starts" in self.options:
            self.options["starts"] = np.array([3, 9]) if self.numbered else np.array([[0.0, 0.1], [0.5, -0.5]])
        actions = 2 if route == "state-action" else 1
        self.options["features"] = make(features, self.log, actions=actions)[0]  # fitted once for all variants

    def evaluate(self, log: vf.Transitions | None = None, *, swapped: bool = False, **other: Any) -> vf.Evaluation:
        log, options = self.log if log is None else log, {**self.options, **other}
        if self.route != "logged":
            options.setdefault("policy", Chooser(numbered=self.numbered, swapped=swapped))
            options.setdefault("values", "state" if self.route == "ratios" else "state-action")
        return vf.evaluate(log if self.storage == "memory" else in_shards(log, self.folder, "memory"), **options)


@pytest.fixture
def case(route: str, features: str, option: str, storage: str, tmp_path: Path) -> Case:
    return Case(route, features, option, storage, tmp_path)


def numbered(log: vf.Transitions) -> vf.Transitions:
    """The log with a number for the cell of each observation."""
    cell = np.clip(np.floor(log.observations + CELLS / 2), 0, CELLS - 1).astype(int) @ [CELLS, 1]
    after = cell[np.where(log.next < 0, log.now, log.next)]
    return vf.Transitions.from_arrays(
        cell[log.now], log.reward, terminated=log.terminated, episode=log.episode, action=log.action,
        next_observation=after, behaviour_prob=log.behaviour_prob,
    )  # fmt: skip


def outcomes(evaluation: vf.Evaluation) -> dict[str, str]:
    return {check.name: check.outcome for check in evaluation.checks}


def assert_same(one: vf.Evaluation, other: vf.Evaluation, *, scale: float = 1.0, shift: float = 0.0) -> None:
    """Estimate, standard error and interval: those of `one` times scale plus shift, to 1e-5 of the standard error."""
    a, b = one.policy_value, other.policy_value
    assert a.standard_error is not None
    tol = 1e-5 * abs(scale) * a.standard_error
    assert b.estimate == pytest.approx(scale * a.estimate + shift, abs=tol)
    assert b.standard_error == pytest.approx(abs(scale) * a.standard_error, abs=tol)


def assert_same_verdict(one: vf.Evaluation, other: vf.Evaluation) -> None:
    assert outcomes(one) == outcomes(other)
    assert one.verdict.level == other.verdict.level


def test_rewards_in_another_unit(case: Case) -> None:
    first, other = case.evaluate(), case.evaluate(replace(case.log, reward=1000 * case.log.reward))
    assert_same(first, other, scale=1000.0)
    assert_same_verdict(first, other)


def test_a_constant_added_to_the_rewards(case: Case) -> None:
    first, ones = case.evaluate(), case.evaluate(replace(case.log, reward=np.ones(len(case.log))))
    other = case.evaluate(replace(case.log, reward=case.log.reward + 7))
    tol = 1e-5 * (first.policy_value.standard_error or 0.0)
    assert other.policy_value.estimate == pytest.approx(
        first.policy_value.estimate + 7 * ones.policy_value.estimate, abs=tol
    )
    kept, now = outcomes(first), outcomes(other)
    assert {name: now[name] for name in kept.keys() - ABOUT_REWARDS} == {
        name: kept[name] for name in kept.keys() - ABOUT_REWARDS
    }


def test_episodes_in_another_order_with_other_ids(case: Case) -> None:
    log, order = case.log, np.random.default_rng(0).permutation(case.log.episodes)
    steps = np.concatenate([np.flatnonzero(log.episode == episode) for episode in order])
    ids = np.repeat(np.arange(len(order)) * 3 + 11, [np.count_nonzero(log.episode == one) for one in order])
    other = vf.Transitions.from_arrays(
        log.observations[log.now[steps]], log.reward[steps], terminated=log.terminated[steps], episode=ids,
        next_observation=log.observations[np.where(log.next < 0, log.now, log.next)[steps]],
        action=None if log.action is None else log.action[steps],
        behaviour_prob=None if log.behaviour_prob is None else log.behaviour_prob[steps],
    )  # fmt: skip
    assert_same(case.evaluate(), case.evaluate(other))


def test_actions_with_other_numbers(case: Case) -> None:
    assert case.log.action is not None
    other = case.evaluate(replace(case.log, action=1 - case.log.action), swapped=True)
    assert_same(case.evaluate(), other)


def test_a_log_twice(case: Case) -> None:
    log = case.log
    twice = vf.Transitions.from_arrays(
        *(np.concatenate([one, one]) for one in (log.observations[log.now], log.reward)),
        terminated=np.tile(log.terminated, 2), episode=np.concatenate([log.episode, log.episode + len(log)]),
        next_observation=np.concatenate(2 * [log.observations[np.where(log.next < 0, log.now, log.next)]]),
        action=None if log.action is None else np.tile(log.action, 2),
        behaviour_prob=None if log.behaviour_prob is None else np.tile(log.behaviour_prob, 2),
    )  # fmt: skip
    first, other = case.evaluate().policy_value, case.evaluate(twice).policy_value
    assert first.standard_error is not None
    assert other.standard_error is not None
    assert other.estimate == pytest.approx(first.estimate, abs=1e-5 * first.standard_error)
    assert 0.6 < other.standard_error / first.standard_error < 0.8  # about sqrt(1/2)


def test_the_policy_of_the_log_has_the_value_of_the_log(case: Case) -> None:
    case.route, behaviour = "logged", np.array([0.6, 0.4])
    found = case.evaluate(policy=lambda observations: np.tile(behaviour, (len(observations), 1)))
    assert_same(case.evaluate(), found)


def test_the_log_in_memory_in_shards_in_files_and_saved(case: Case) -> None:
    first = case.evaluate()
    if case.storage == "memory":
        first.save(case.folder / "evaluation.npz")
        if case.route == "logged":
            loaded = vf.Evaluation.load(case.folder / "evaluation.npz", features=case.options["features"].transformer)
            assert_same(first, loaded)
        vf.save(case.log, case.folder / "log")
        assert_same(first, case.evaluate(vf.load(case.folder / "log")))
        return
    case.storage = "memory"
    expected = case.evaluate()
    assert_same(expected, first)
    assert_same_verdict(expected, first)
    settings = dict(case.options)
    if case.route != "logged":
        settings["policy"] = Chooser(numbered=case.numbered)
        settings["values"] = "state" if case.route == "ratios" else "state-action"
    if not case.numbered:
        for kind in ("native", "files"):
            assert_same(expected, vf.evaluate(in_shards(case.log, case.folder, kind), **settings))
