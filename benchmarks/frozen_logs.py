"""The small logs of `benchmarks.freeze`: 60 of 20 kinds, and how each is evaluated.

Most come from simulators in this file, so that they do not change with valuefit. Logs that are also read in shards have
about 3,000 steps, because a shard has at least 1,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

import valuefit as vf

STORAGES = ("memory", "shards", "sample")  # see `benchmarks.freeze.stored`
Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A log and the evaluations of it: every route with every option.

    settings: of all evaluations. routes: the policy and the kind of values. options: names in OPTIONS.
    in_files: whether the shards are those of Parquet files, which cannot have gaps within episodes, or of the log.
    """

    log: vf.Transitions
    settings: Settings
    routes: Mapping[str, Settings]
    options: tuple[str, ...]
    storages: tuple[str, ...] = STORAGES
    in_files: bool = True


# The solver is "lstd" unless an option names another.
OPTIONS: dict[str, Callable[[vf.Transitions], Settings]] = {
    "lstd": lambda log: {},
    "auto": lambda log: {"solver": "auto"},
    "krylov": lambda log: {"solver": "krylov", "tol": 1e-10},
    "svrg": lambda log: {"solver": "svrg"},
    "saga": lambda log: {"solver": "saga"},
    "trace": lambda log: {"trace": 0.7},
    "ridge": lambda log: {"ridge": 0.01},
    "cr1": lambda log: {"interval": "cr1"},
    "starts": lambda log: {"starts": log.observations[log.now[[0, len(log) // 2, -1]]]},
    "range": lambda log: {"reward_range": (float(log.reward.min()) - 0.1, float(log.reward.max()) + 0.1)},
    "level": lambda log: {"level": 0.8, "discount": 0.97},
    "all": lambda log: {"checks": "all"},
}
FEW = ("lstd", "auto", "cr1", "trace")
OTHER_ANSWERS = ("trace", "ridge", "starts", "level")  # with the others the difference to "lstd" is a rounding error
SAMPLED = ("lstd", "auto", "cr1", "trace", "ridge", "starts")  # those that are also tried with the storage "sample"


# ---- target policies -----------------------------------------------------------------------------------------


def even(observations: Any) -> Any:
    """Both actions equally often."""
    return np.full((len(observations), 2), 0.5)


def often(observations: Any) -> Any:
    """Action 1 nearly always, which the log takes in few steps."""
    return np.tile([0.05, 0.95], (len(observations), 1))


def greedy(observations: Any) -> Any:
    """One action in each state, by the sign of the first coordinate."""
    return np.eye(2)[(np.asarray(observations)[:, 0] < 0).astype(int)]


def push(observations: Any) -> Any:
    """Probabilities of the three actions of Mountain Car: mostly in the direction of the velocity."""
    forward = np.asarray(observations)[:, 1] >= 0
    return np.where(forward[:, None], [0.05, 0.05, 0.9], [0.9, 0.05, 0.05])


def pushed(observations: Any) -> Any:
    """The most probable action of `push` alone."""
    return np.eye(3)[np.argmax(push(observations), axis=1)]


def density(observations: Any, actions: Any) -> Any:
    """The density of a normal action around a quarter of the first coordinate."""
    return np.exp(-((np.ravel(actions) - 0.25 * np.asarray(observations)[:, 0]) ** 2) / 2) / np.sqrt(2 * np.pi)


def routes(policy: Any) -> dict[str, Settings]:
    """The log as it is, and the policy by ratios and by state-action values."""
    return {
        "log": {},
        "ratios": {"policy": policy},
        "pairs": {"policy": policy, "values": "state-action"},
    }


GREEDY: dict[str, Settings] = {"greedy": {"policy": greedy, "values": "state-action"}}
LOG: dict[str, Settings] = {"log": {}}


# ---- simulators ----------------------------------------------------------------------------------------------


def columns_of(steps: list[tuple[Any, ...]], *names: str) -> dict[str, Any]:
    """One array for each name."""
    return {name: np.array(column) for name, column in zip(names, zip(*steps, strict=True), strict=True)}


def process_columns(
    seed: int, episodes: int = 100, lengths: tuple[int, int] = (5, 60), *, prob: float = 0.4, group: int = 0,
    width: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """An autoregression that action 1 pushes; half of the episodes terminate, the others are truncated.

    lengths: smallest and largest number of steps of an episode. prob: of action 1. group: how many consecutive
    episodes share a part of their rewards (`cluster`).
    """
    rng = np.random.default_rng(seed)
    steps, shared = [], rng.normal(size=episodes)
    for episode in range(episodes):
        x, length = rng.normal(size=width), int(rng.integers(lengths[0], lengths[1] + 1))
        for t in range(length):
            action = int(rng.random() < prob)
            y = 0.8 * x + 0.3 * (action - prob) + 0.4 * rng.normal(size=width)
            reward = x[0] + action + (shared[episode // group] if group else 0.0)
            last = t == length - 1
            steps.append((x, y, reward, episode, last and episode % 2 == 0, action, prob if action else 1 - prob))
            x = y
    columns = columns_of(
        steps, "observation", "next_observation", "reward", "episode", "terminated", "action", "behaviour_prob"
    )
    return columns | ({"cluster": columns["episode"] // group} if group else {})


def table_columns(
    seed: int, states: int = 12, actions: int = 2, episodes: int = 120, length: int = 25, *, never: bool = False
) -> dict[str, Any]:
    """Episodes of a random finite MDP with numbered states; `never`: action 1 is not taken in the last two states."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(states, 0.3), (states, actions))
    rewards, ends = rng.normal(size=(states, actions)), rng.uniform(0.0, 0.06, states)
    behaviour = rng.dirichlet(np.full(actions, 3.0), states)
    if never:
        behaviour[-2:] = np.eye(actions)[0]
    steps = []
    for episode in range(episodes):
        s = int(rng.integers(states))
        for t in range(length):
            action = int(rng.choice(actions, p=behaviour[s]))
            after = int(rng.choice(states, p=chances[s, action]))
            ended = bool(rng.random() < ends[s])
            reward = rewards[s, action] + 0.3 * rng.normal()
            steps.append(
                (s, after, reward, episode, ended, t == length - 1 and not ended, action, behaviour[s, action])
            )
            s = after
            if ended:
                break
    return columns_of(
        steps, "observation", "next_observation", "reward", "episode", "terminated", "truncated", "action",
        "behaviour_prob",
    )  # fmt: skip


@cache
def driver() -> Any:
    """A policy of Mountain Car."""
    return vf.datasets.mountain_car.sarsa(episodes=200)


def process_log(seed: int, *arguments: Any, **settings: Any) -> vf.Transitions:
    return vf.Transitions.from_arrays(**process_columns(seed, *arguments, **settings))


# ---- kinds ---------------------------------------------------------------------------------------------------


def process(seed: int) -> Case:
    options = tuple(OPTIONS) if seed < 2 else ("lstd", "auto", "krylov", "trace", "ridge", "cr1", "starts", "range")
    return Case(process_log(seed), {"features": "fourier:order=3", "discount": 0.9}, routes(even) | GREEDY, options)


def short(seed: int) -> Case:
    log = process_log(seed, 700, (1, 8))
    return Case(log, {"features": "kernel:landmarks=30", "discount": 0.9}, routes(even), FEW)


def long(seed: int) -> Case:
    log = process_log(seed, 6, (400, 600))
    return Case(log, {"features": "rbf:centres=20", "discount": 0.95}, routes(even), (*FEW, "range"))


def one(seed: int) -> Case:
    return Case(process_log(seed, 1, (2500, 2500)), {"features": "fourier:order=2", "discount": 0.9}, routes(even), FEW)


def groups(seed: int) -> Case:
    log = process_log(seed, 120, (5, 30), group=6)
    return Case(log, {"features": "fourier:order=2", "discount": 0.9}, routes(even) | GREEDY, FEW, ("memory",))


def heavy(seed: int) -> Case:
    log = process_log(seed, 80, (20, 50), prob=0.2)
    return Case(log, {"features": "fourier:order=2", "discount": 0.9}, routes(often), (*FEW, "ridge", "all"))


def tiny(seed: int) -> Case:
    log = process_log(seed, 2 + seed, (3, 12))
    return Case(
        log, {"features": "fourier:order=2", "discount": 0.9}, routes(even), ("lstd", "auto", "range"), ("memory",)
    )


def wide(seed: int) -> Case:
    log = process_log(seed, 60, (20, 60), width=4)
    return Case(log, {"features": "fourier:order=3", "discount": 0.9}, LOG, ("lstd", "auto", "krylov", "ridge"))


def automatic(seed: int) -> Case:
    return Case(process_log(seed, 60, (20, 60), width=3), {"discount": 0.95}, routes(even), ("lstd", "auto", "starts"))


def polynomial(seed: int) -> Case:
    settings = {"features": ("polynomial:degree=2", "identity")[seed % 2], "discount": 0.8}
    return Case(process_log(seed), settings, routes(even), ("lstd", "trace", "ridge", "level"))


def gaps(seed: int) -> Case:
    """Some observations are unknown, and with even seeds some steps are left out."""
    columns, rng = process_columns(seed), np.random.default_rng(seed)
    unknown = rng.random(len(columns["reward"])) < 0.05
    columns["observation"][unknown, 1] = np.nan
    log = vf.Transitions.from_arrays(**columns, missing="flag")
    log = log if seed % 2 else log[rng.random(len(log)) < 0.97]
    settings = {"features": "fourier:order=1", "discount": 0.9}
    return Case(log, settings, routes(even), FEW, in_files=bool(seed % 2))


def continuous(seed: int) -> Case:
    columns, rng = process_columns(seed), np.random.default_rng(seed)
    action = rng.normal(size=len(columns["reward"]))
    columns |= {"action": action, "behaviour_prob": np.exp(-(action**2) / 2) / np.sqrt(2 * np.pi)}
    columns["reward"] = columns["reward"] + 0.3 * action
    both = {"log": {}, "ratios": {"policy": density}}
    return Case(vf.Transitions.from_arrays(**columns), {"features": "fourier:order=2", "discount": 0.9}, both, FEW)


def named(seed: int) -> Case:
    columns = table_columns(seed, states=6, episodes=60)
    for name in ("observation", "next_observation"):
        columns[name] = np.array(["north", "south", "east", "west", "up", "down"])[columns[name]]
    columns["action"] = np.array(["stay", "go"])[columns["action"]]
    policy = {"go": 0.7, "stay": 0.3}
    return Case(vf.load(columns), {"discount": 0.9}, routes(policy), ("lstd", "auto", "cr1"), ("memory",))


def table(seed: int) -> Case:
    log = vf.Transitions.from_arrays(**table_columns(seed))
    policy = np.random.default_rng(seed).dirichlet([2.0, 2.0], 12)
    best = np.eye(2)[policy.argmax(axis=1)]
    targets = routes(policy) | {"greedy": {"policy": best, "values": "state-action"}, "greedy ratios": {"policy": best}}
    options = ("lstd", "auto", "trace", "ridge", "cr1", "starts", "range")
    return Case(log, {"features": "one-hot", "discount": 0.9}, targets, options)


def unseen(seed: int) -> Case:
    log = vf.Transitions.from_arrays(**table_columns(seed, actions=2 + seed % 2, never=True))
    policy = np.full((12, 2 + seed % 2), 1 / (2 + seed % 2))
    return Case(
        log, {"features": "one-hot", "discount": 0.8}, routes(policy), ("lstd", "auto", "cr1", "range", "ridge")
    )


def random_mdp(seed: int) -> Case:
    mdp = vf.datasets.random_mdp(30, 3, 8, off_policy=seed % 2 == 1, seed=seed)
    return Case(mdp.log(2500, seed=seed), {"features": mdp.rows, "discount": 0.9}, LOG, (*FEW, "krylov", "ridge"))


def walk(seed: int) -> Case:
    log = vf.datasets.random_walk_log(400, seed=seed)
    both = {"log": {}, "ratios": {"policy": np.tile([0.4, 0.6], (5, 1))}}
    return Case(log, {"discount": 1.0}, both, (*FEW, "range"))


def chain(seed: int) -> Case:
    """Boyan's chain and, with odd seeds, Baird's star, whose moments are singular and rewards 0."""
    if seed % 2:
        log, features = vf.datasets.baird_log(2500, seed=seed), partial(rows_of, vf.datasets.baird_features)
        return Case(log, {"features": features, "discount": 0.9}, LOG, FEW)
    log = vf.datasets.boyan_log(350, seed=seed)
    return Case(log, {"features": partial(rows_of, vf.datasets.boyan_features), "discount": 1.0}, LOG, FEW)


def rows_of(function: Callable[[Any], Any], state: Any) -> Any:
    """The rows of integer states; valuefit may give them as a column."""
    return function(np.ravel(state).astype(int))


def stationary(seed: int) -> Case:
    log = vf.datasets.ar1_log(2500, seed=seed)
    return Case(log, {"features": vf.datasets.fourier_features(40, seed=seed), "discount": 0.9}, LOG, (*FEW, "krylov"))


def car(seed: int) -> Case:
    log = driver().log(3000, seed=seed, cars=10)
    features = ("tiles:tilings=4,bins=5", "kernel:landmarks=60", "rbf:centres=12")[seed % 3]
    targets = LOG | {
        name: {"policy": policy, "values": "state-action"} for name, policy in (("pairs", push), ("greedy", pushed))
    }
    options = (*FEW, "krylov") if features.startswith("tiles") else FEW
    return Case(log, {"features": features, "discount": 0.95}, targets, options)


def example(seed: int) -> Case:
    log = vf.datasets.example_log().select(range(10 * seed, 10 * seed + 30))
    return Case(
        log, {"features": ("auto", "tiles", "fourier:order=4")[seed % 3]}, LOG, ("lstd", "auto", "cr1", "range")
    )


# The number of seeds of each kind, and the kinds whose last seed is in a --quick run.
KINDS: dict[Callable[[int], Case], int] = {
    process: 6, short: 3, long: 3, one: 3, groups: 3, heavy: 3, tiny: 4, wide: 2, automatic: 2, polynomial: 2, gaps: 2,
    continuous: 2, named: 2, table: 6, unseen: 4, random_mdp: 3, walk: 2, chain: 2, stationary: 1, car: 3, example: 2,
}  # fmt: skip
QUICK = (process, short, one, groups, heavy, tiny, gaps, table, unseen, random_mdp, chain, car)
CASES = {f"{kind.__name__} {seed}": partial(kind, seed) for kind, seeds in KINDS.items() for seed in range(seeds)}
QUICK_CASES = tuple(f"{kind.__name__} {KINDS[kind] - 1}" for kind in QUICK)
