"""Compare `features="auto"` with what it chose before, poorer rungs, and other estimators, on tasks kept for this test.

With --fresh, on a second set of such tasks; with --tuned, on the continuous tasks of the verdict's calibration, on
which "auto" was tuned. Each log is evaluated by every method; records are stored as those of the other studies. With
--peers, fitted Q evaluation by gradient boosting (scikit-learn) runs instead, which takes a minute a log.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import valuefit as vf
from coverage_study.fresh import FRESH
from coverage_study.held_out import DISCOUNTS, EPISODES, HELD_OUT
from coverage_study.records import FOLDER, Cell, Record, generator, run_cells
from coverage_study.tasks import often, tasks
from coverage_study.truths import store, stored_truths, truth_of
from coverage_study.worlds import Array, Policy, World, log_of, simulated_value
from valuefit.policies.importance import with_ratios

ROUTES = {"ratios": "state", "state-action": "state-action"}
TUNED = ("cartpole", "puddle-world", "shi", "quadratic-process", "sine-process", "mountain-car", "acrobot")
REPLICATIONS = 40
ROLLOUTS = 100_000  # of a simulated value
RUNGS = (4, 16)  # divisors of the number of landmarks of "auto"
NEAR_ZERO = 0.1  # a truth below this share of the spread of returns is compared with the spread
IMPORTANCE = {"importance sampling": "per-decision", "weighted importance sampling": "weighted"}


@dataclass(frozen=True, eq=False)
class Setting:
    """A task with a discount and a number of episodes."""

    task: str
    discount: float
    episodes: int

    @property
    def name(self) -> str:
        return f"{self.task}-{self.discount:g}-{self.episodes}"

    @property
    def truth_name(self) -> str:
        return f"{self.task}-{self.discount:g}"

    @property
    def drawn(self) -> tuple[World, Policy, Policy, int]:
        """The world, the behaviour and target policies, and the number of steps after which an episode is cut."""
        if self.task in TUNED:
            found = tasks()[self.task]
            return found.world, found.behaviour, found.target, found.limit
        world, action, behaviour, target, limit = {**HELD_OUT, **FRESH}[self.task]
        return world, often(action, world.actions, behaviour), often(action, world.actions, target), limit

    @property
    def actions(self) -> int:
        return self.drawn[0].actions

    @property
    def target(self) -> Policy:
        return self.drawn[2]

    def log(self, rng: np.random.Generator) -> vf.Transitions:
        world, behaviour, _, limit = self.drawn
        return log_of(world, behaviour, self.episodes, limit, rng)


class ComparisonCell(Cell):
    """All methods on the logs of a setting; a record has the truth and, by route and method, what was found."""

    def __init__(self, setting: Setting, peers: bool) -> None:
        self.setting, self.peers = setting, peers
        super().__init__(setting.name + "-peers" * peers, lambda rng: (setting.log(rng), {}, 0.0), FOLDER / "automatic")

    def run(self, replication: int) -> Record:
        log = self.setting.log(generator(self.setting.name, replication))
        truth = truth_of(self.setting.truth_name)
        found: dict[str, Any] = {"truth": truth.value, "spread": truth.standard_error * math.sqrt(ROLLOUTS)}
        if self.peers:
            return {**found, "peers/FQE": timed(lambda: {"estimate": fitted_q(log, self.setting)})}
        for route, values in ROUTES.items():
            for method, features in methods(log, self.setting, route).items():
                found[f"{route}/{method}"] = timed(lambda v=values, f=features: self._evaluate(log, v, f))
        return found

    def _evaluate(self, log: vf.Transitions, values: str, features: str) -> Record:
        setting = self.setting
        try:
            evaluation = vf.evaluate(
                log, features=features, values=values, policy=setting.target, discount=setting.discount
            )
        except ValueError as error:
            return {"refused": str(error)}
        value = evaluation.policy_value
        others = {
            IMPORTANCE[entry.name]: entry.estimate for entry in evaluation.cross_checks if entry.name in IMPORTANCE
        }
        return {
            "estimate": value.estimate, "interval": value.interval, "level": evaluation.verdict.level,
            "weights": evaluation.problem.d, "others": others,
        }  # fmt: skip


def timed(run: Callable[[], Record]) -> Record:
    started = time.process_time()
    return {**run(), "seconds": time.process_time() - started}


def methods(log: vf.Transitions, setting: Setting, route: str) -> dict[str, str]:
    """Names and features: today's "auto", what version 0.1 chose, and fewer landmarks."""
    from valuefit.features.registry import StepCount, landmark_count

    by_ratios = route == "ratios"
    share = with_ratios(log, setting.target).effective_share if by_ratios else 1.0
    count = landmark_count(StepCount(len(log), 1 if by_ratios else setting.actions, share))
    width = log.observations.shape[1]
    most = min(max(len(log) // 40, 1), 300)
    before = f"fourier:order=9,max_features={min(most, 100)}"
    if width > 6:
        before = f"polynomial:degree={2 if math.comb(width + 2, 2) <= most else 1},max_features={max(width + 1, most)}"
    rungs = {f"1/{divisor} of the landmarks": f"kernel:landmarks={max(count // divisor, 1)}" for divisor in RUNGS}
    return {"auto": "auto", "before": before, **rungs}


def fitted_q(log: vf.Transitions, setting: Setting) -> float:
    """Fitted Q evaluation by gradient boosting, iterated until rewards further away no longer count."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    now, action = log.observations[log.now], np.asarray(log.action)
    following = log.observations[np.maximum(log.next, 0)]
    goes_on = (log.next >= 0) & ~log.terminated
    actions = setting.actions
    first = np.unique(log.episode, return_index=True)[1]
    after, at_start = setting.target(following), setting.target(now[first])
    model: Any = None
    for _ in range(math.ceil(math.log(0.005) / math.log(setting.discount))):
        target = log.reward.astype(float)
        if model is not None:
            target = target + setting.discount * goes_on * expected(model, following, after, actions)
        model = HistGradientBoostingRegressor(max_iter=50, learning_rate=0.2, random_state=0)
        model.fit(np.column_stack([now, action]), target)
    return float(expected(model, now[first], at_start, actions).mean())


def expected(model: Any, observations: Array, probability: Array, actions: int) -> Array:
    """The mean value over the actions of a policy."""
    return sum(
        probability[:, a] * model.predict(np.column_stack([observations, np.full(len(observations), a)]))
        for a in range(actions)
    )


def settings(names: Iterable[str]) -> Iterator[Setting]:
    for task in names:
        for discount in DISCOUNTS:
            for episodes in EPISODES:
                yield Setting(task, discount, episodes)


def simulate_truths(names: Iterable[str]) -> None:
    """Values that are not stored yet."""
    for setting in settings(names):
        if setting.truth_name not in stored_truths():
            world = setting.drawn[0]
            store(setting.truth_name, simulated_value(world, setting.target, setting.discount, ROLLOUTS))


def scale_of(record: Record) -> float:
    """What errors are relative to: the truth, or the spread of returns where the truth is near 0."""
    truth, spread = abs(record["truth"]), record["spread"]
    return float(truth if truth > NEAR_ZERO * spread else spread)


def errors(records: list[Record], method: str) -> Array:
    """Relative errors of a method; that of "per-decision" and "weighted" is read from the evaluation by ratios."""
    found = []
    for record in records:
        entry = record.get(method) or {}
        if method.startswith("importance/"):
            estimate = record.get("ratios/auto", {}).get("others", {}).get(method.split("/")[1])
        else:
            estimate = entry.get("estimate")
        if estimate is not None:
            found.append((estimate - record["truth"]) / scale_of(record))
    return np.array(found)


def lines(setting: Setting, records: list[Record]) -> list[str]:
    """One line for each method: median error, RMSE, coverage, sound, weights and seconds."""
    out = []
    for method in [*(key for key in records[0] if "/" in key), "importance/per-decision", "importance/weighted"]:
        error = errors(records, method)
        if not len(error):
            continue
        entries = [record[method] for record in records if method in record]
        intervals = [(e["interval"], r["truth"]) for r in records if (e := r.get(method)) and e.get("interval")]
        coverage = np.mean([low <= truth <= high for (low, high), truth in intervals]) if intervals else np.nan
        sound = np.mean([entry.get("level") == "sound" for entry in entries]) if entries else np.nan
        seconds = np.mean([entry["seconds"] for entry in entries]) if entries else np.nan
        weights = np.median([entry.get("weights", 0) for entry in entries]) if entries else 0
        out.append(
            f"{setting.name:24}{method:36}{len(error):4d}{np.median(np.abs(error)):9.2%}"
            f"{np.sqrt(np.mean(error**2)):9.2%}{coverage:7.0%}{sound:7.0%}{weights:7.0f}{seconds:8.1f} s"
        )
    return out


COLUMNS = {
    "auto, by ratios": "ratios/auto",
    "by state-action values": "state-action/auto",
    "before, by ratios": "ratios/before",
    "before, by state-action": "state-action/before",
    "per-decision": "importance/per-decision",
    "weighted": "importance/weighted",
    "FQE": "peers/FQE",
}


def markdown(found: dict[str, list[Record]]) -> list[str]:
    """A table with a row for each setting: median error, RMSE and coverage of each method."""
    out = ["| task | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for name, records in found.items():
        cells = []
        for method in COLUMNS.values():
            error = errors(records, method)
            covered = [
                low <= record["truth"] <= high
                for record in records if (entry := record.get(method)) and entry.get("interval")
                for low, high in [entry["interval"]]
            ]  # fmt: skip
            text = "" if not len(error) else f"{np.median(np.abs(error)):.1%}, {np.sqrt(np.mean(error**2)):.1%}"
            cells.append(text + (f", {np.mean(covered):.0%}" if covered else ""))
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return out


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m coverage_study.automatic", description=__doc__)
    parser.add_argument("--replications", type=int, default=REPLICATIONS)
    parser.add_argument("--episodes", type=int, choices=EPISODES, nargs="+", default=list(EPISODES))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--peers", action="store_true", help="Fitted Q evaluation instead of valuefit.")
    parser.add_argument("--tuned", action="store_true", help=f"On {', '.join(TUNED)}.")
    parser.add_argument("--fresh", action="store_true", help=f"On {', '.join(FRESH)}.")
    options = parser.parse_args(arguments)
    names = TUNED if options.tuned else tuple(FRESH if options.fresh else HELD_OUT)
    simulate_truths(names)
    cells = [ComparisonCell(each, options.peers) for each in settings(names) if each.episodes in options.episodes]
    by_name, found = {cell.name: cell for cell in cells}, {}
    print(f"{'setting':24}{'method':36}{'logs':>4}{'median':>9}{'RMSE':>9}{'cover':>7}{'sound':>7}{'d':>7}{'time':>8}")
    for cell, records in run_cells(
        list(cells), options.replications, jobs=options.jobs, seconds=options.seconds, keep=options.keep
    ):
        if records:
            found[cell.name] = list(records.values())
            print("\n".join(lines(by_name[cell.name].setting, found[cell.name])), flush=True)
    print("\n".join(["", "Median error, RMSE and, of intervals, coverage:", "", *markdown(found)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
