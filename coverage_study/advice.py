"""What valuefit says of logs on which version 0.2 gave confident wrong answers: writes the table of docs/advice.md.

The answers of version 0.2 are stored in advice.json. To take them again, run with `--before` where version 0.2 is the
valuefit that is imported (PYTHONPATH).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

import valuefit as vf
from coverage_study.clinical import ClinicalLog, clinical_log
from coverage_study.control import CartPole, toy_text
from coverage_study.records import ROOT, generator
from coverage_study.synthetic import mixed, optimal
from coverage_study.tasks import balance, often, tasks
from coverage_study.worlds import Array, log_of, table_policy
from valuefit.atomic import write_bytes
from valuefit.datasets.example import example_log

PAGE = ROOT / "docs" / "advice.md"
STORED = Path(__file__).with_name("advice.json")  # the answers of version 0.2, by scenario
BEGIN, END = "<!-- python -m coverage_study.advice -->", "<!-- end -->"
NULL_LOGS, LOGGED_LOGS, LANDER_LOGS = 20, 60, 10  # that are counted
DISCOUNT = 0.9  # of the logs that are made here
DOSES = np.array(["none", "low", "high"])  # actions 0, 1, 2; by name their order is high, low, none


class Scenario(NamedTuple):
    """item: the group in the table. what: is evaluated. truth: in words. answer: what valuefit says, in short."""

    item: str
    what: str
    truth: str
    answer: Callable[[], str]


SCENARIOS: dict[str, Scenario] = {}


def scenario(item: str, what: str, truth: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Add a function that returns an answer to the scenarios, under its name."""

    def add(answer: Callable[[], str]) -> Callable[[], str]:
        SCENARIOS[answer.__name__] = Scenario(item, what, truth, answer)
        return answer

    return add


def said(evaluation: vf.Evaluation) -> str:
    """Estimate, interval and verdict."""
    value = evaluation.policy_value
    interval = "no interval" if value.interval is None else f"[{value.interval[0]:.3g}, {value.interval[1]:.3g}]"
    return f"{value.estimate:.3g} {interval}, {evaluation.verdict.level}"


def answer_of(name: str) -> str:
    """What the installed version says; a refusal is quoted up to its first full stop."""
    try:
        return SCENARIOS[name].answer()
    except (ValueError, OSError) as error:
        sentence = re.split(r"[.:;] ", re.sub(r"/\S*/", "", str(error)))[
            0
        ]  # without the folder, which has a random name
        return f"refused: {sentence}"
    except AttributeError:
        return "not possible"


# ---- regularisation ------------------------------------------------------------------------------------------------


@cache
def example_of_the_docs() -> tuple[vf.Transitions, Any]:
    """The log and the target policy of docs/which-features.md; the policy is worth 96.05."""
    page = (ROOT / "docs" / "which-features.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.S)[0].replace("print(log)", ""), names)
    return names["log"], names["target"]


@scenario("Regularisation", "`ridge=1e-4`, CartPole of [](which-features.md), by state-action values", "96.0")
def ridge_by_state_action_values() -> str:
    log, target = example_of_the_docs()
    return said(vf.evaluate(log, policy=target, values="state-action", ridge=1e-4))


@scenario("Regularisation", "the same by ratios", "96.0")
def ridge_by_ratios() -> str:
    log, target = example_of_the_docs()
    return said(vf.evaluate(log, policy=target, ridge=1e-4))


# ---- missing values ------------------------------------------------------------------------------------------------


@cache
def clinic() -> ClinicalLog:
    """A log with gaps in 3 of 45 columns."""
    return clinical_log(generator("clinical", 0))


def clinic_value(table: dict[str, Array], **settings: Any) -> str:
    log = clinic()
    return said(
        vf.evaluate(table, columns=log.names, policy=log.policy, values="state-action", discount=0.95, **settings)
    )


@scenario("Missing values", "a clinic: 3 of 45 columns have gaps; the steps with gaps removed", "-9.30")
def clinic_with_steps_removed() -> str:
    return clinic_value(clinic().without_gaps())


@scenario("Missing values", 'the same log whole, with `missing="flag"`', "-9.30")
def clinic_with_gaps_flagged() -> str:
    try:
        return clinic_value(clinic().columns, missing="flag")
    except TypeError:  # version 0.2 has no such argument
        return clinic_value(clinic().columns)


# ---- targets that the log cannot answer ----------------------------------------------------------------------------

TARGETS = "Targets that the log cannot answer"


@cache
def cartpole() -> vf.Transitions:
    """CartPole under a policy that pushes at random half of the time."""
    return log_of(CartPole(), often(balance, 2, 0.5), 100, 200, np.random.default_rng(2))


def greedy_cartpole(values: str) -> str:
    """The greedy policy, worth 99.96; values lie in [0, 100]."""
    return said(vf.evaluate(cartpole(), policy=often(balance, 2, 0.0), values=values))


@scenario(
    "Targets that the log cannot answer", "a greedy policy on CartPole, by ratios; values lie in [0, 100]", "99.96"
)
def greedy_by_ratios() -> str:
    return greedy_cartpole("state")


@scenario(TARGETS, "the same by state-action values", "99.96")
def greedy_by_state_action_values() -> str:
    return greedy_cartpole("state-action")


@scenario(TARGETS, "the best policy on FrozenLake, from a log of random actions", "0.18")
def few_effective_steps() -> str:
    from gymnasium.envs.toy_text import FrozenLakeEnv

    lake = toy_text(FrozenLakeEnv())
    best = optimal(lake, 0.95)
    log = log_of(lake, table_policy(mixed(best, 1.0)), 120, 100, np.random.default_rng(0))
    return said(vf.evaluate(log, policy=best, discount=0.95))


@scenario(
    TARGETS, f"{LANDER_LOGS} logs of a vehicle that must keep still to be rewarded, which they hardly contain", "3.95"
)
def quiet_lander() -> str:
    task, evaluations = tasks()["quiet-lander"], []
    for number in range(LANDER_LOGS):
        log = task.log("ratios", 100, generator("quiet-lander", number))
        evaluations.append(vf.evaluate(log, **task.settings("ratios", "auto")))
    mean = np.mean([evaluation.policy_value.estimate for evaluation in evaluations])
    sound = sum(evaluation.verdict.level == "sound" for evaluation in evaluations)
    return f"{mean:.2g} on average, {sound} sound"


# ---- the diagnosis -------------------------------------------------------------------------------------------------


@scenario("Diagnosis", "`make demo`: Mountain Car, the logged policy, automatic features", "-70.6")
def demo() -> str:
    evaluation = vf.evaluate(example_log())
    warned = [check.name for check in evaluation.checks if check.outcome in ("warn", "fail")]
    return said(evaluation) + (f" ({', '.join(warned)})" if warned else "")


# ---- labels --------------------------------------------------------------------------------------------------------


@cache
def doses() -> tuple[dict[str, Any], Any, Any]:
    """The columns of a log with doses 0, 1, 2, and classifiers fitted on them by number and by name."""
    rng = np.random.default_rng(1)
    severity, columns = rng.normal(1, 0.5, 300), []
    for _ in range(20):
        dose = rng.integers(0, 3, 300)
        after = 0.8 * severity - 0.3 * (dose - 1) + 0.3 * rng.normal(size=300)
        columns.append((severity, dose, -severity - 0.1 * dose + rng.normal(size=300), after))
        severity = after
    now, dose, reward, after = (np.array(column).T.ravel() for column in zip(*columns, strict=True))
    table = {
        "observation": now[:, None], "reward": reward, "action": dose, "next_observation": after[:, None],
        "behaviour_prob": np.full(len(dose), 1 / 3), "truncated": np.tile(np.arange(20) == 19, 300),
    }  # fmt: skip
    seen = rng.normal(0, 1, (3000, 1))
    given = np.clip((0.7 * seen[:, 0] + 0.7 * rng.normal(size=3000) + 1.5).astype(int), 0, 2)  # more to the severe
    return table, LogisticRegression().fit(seen, given), LogisticRegression().fit(seen, DOSES[given])


def dose_value(*, log_by_name: bool, policy_by_name: bool) -> str:
    """The value of a classifier as the policy."""
    table, by_number, by_name = doses()
    table = {**table, "action": DOSES[table["action"]] if log_by_name else table["action"]}
    policy = (by_name if policy_by_name else by_number).predict_proba
    log = vf.Transitions.from_arrays(**table)
    return said(vf.evaluate(log, policy=policy, discount=DISCOUNT))


@scenario("Labels", "a classifier fitted on the numbers of the log's actions (for reference)", "")
def classifier_by_number() -> str:
    return dose_value(log_by_name=False, policy_by_name=False)


@scenario("Labels", "the same classifier fitted on their names, high, low, none", "the same value, or a refusal")
def classifier_by_name() -> str:
    return dose_value(log_by_name=False, policy_by_name=True)


@scenario("Labels", "the same with the names in the log", "the same value")
def names_in_the_log() -> str:
    return dose_value(log_by_name=True, policy_by_name=True)


@scenario("Labels", "a log with text actions, saved and loaded", "the same actions")
def text_actions_saved() -> str:
    table, _, _ = doses()
    log = vf.Transitions.from_arrays(**{**table, "action": DOSES[table["action"]]})
    with tempfile.TemporaryDirectory() as folder:
        loaded = vf.load(vf.save(log, Path(folder) / "log"))
    assert loaded.action is not None
    names = loaded.action_names[loaded.action]
    return "the same actions" if (names == DOSES[table["action"]]).all() else "other actions"


# ---- a policy that was learned from its log ------------------------------------------------------------------------


def null_log(seed: int) -> vf.Transitions:
    """A log in which the three actions move two numbers, and rewards are noise: no policy is better than another."""
    rng = np.random.default_rng(seed)
    state, columns = rng.normal(size=(200, 2)), []
    for _ in range(20):
        action = rng.integers(0, 3, 200)
        drift = np.column_stack([action - 1, np.zeros(200)])
        after = 0.8 * state + 0.4 * drift + 0.5 * rng.normal(size=state.shape)
        columns.append((state, action, rng.normal(size=200), after))
        state = after
    state, action, reward, after = (np.swapaxes(column, 0, 1) for column in map(np.array, zip(*columns, strict=True)))
    return vf.Transitions.from_arrays(
        state.reshape(-1, 2), reward.ravel(), action=action.ravel(), next_observation=after.reshape(-1, 2),
        truncated=np.tile(np.arange(20) == 19, 200), behaviour_prob=np.full(4000, 1 / 3),
    )  # fmt: skip


def learned(log: vf.Transitions, iterations: int = 10, ridge: float = 1e-2) -> Callable[[Array], Array]:
    """The policy of LSTD-Q policy iteration on a log of three actions."""
    assert log.action is not None
    phi = vf.features.Fourier(order=3).fit(log.observations).transform
    now, following = phi(log.observations[log.now]), phi(log.observations[log.next])
    theta = np.zeros((3, now.shape[1]))
    rows = (np.eye(3)[log.action][:, :, None] * now[:, None, :]).reshape(len(log), -1)
    for _ in range(iterations):
        best = np.eye(3)[np.argmax(following @ theta.T, axis=1)]
        expected = (best[:, :, None] * following[:, None, :]).reshape(len(log), -1)
        left = rows.T @ (rows - DISCOUNT * expected) / len(log) + ridge * np.eye(theta.size)
        theta = np.linalg.solve(left, rows.T @ log.reward / len(log)).reshape(theta.shape)
    return lambda observations: np.eye(3)[np.argmax(phi(observations) @ theta.T, axis=1)]


def sound_improvements(*, held_out: bool) -> str:
    """How many of the policies that were learned from a half of the episodes look better, in how many soundly."""
    settings: dict[str, Any] = {"features": "fourier:order=3", "discount": DISCOUNT}
    better = sound = 0
    for seed in range(NULL_LOGS):
        learning, other = vf.split(null_log(seed)) if held_out else (null_log(seed).select(range(100)),) * 2
        evaluation = vf.evaluate(other, policy=learned(learning), values="state-action", **settings)
        difference = vf.compare(evaluation, vf.evaluate(other, **settings))
        improved = difference.interval is not None and difference.interval[0] > 0
        better, sound = better + improved, sound + (improved and evaluation.verdict.level == "sound")
    return f"{better} of {NULL_LOGS} better, {sound} by a sound verdict"


LEARNED = "A policy learned from the log"


@scenario(
    LEARNED, f"{NULL_LOGS} logs whose rewards are noise, on the episodes that it was learned from", "none is better"
)
def learned_here() -> str:
    return sound_improvements(held_out=False)


@scenario(LEARNED, "the same on episodes that `vf.split` held out", "none is better")
def learned_elsewhere() -> str:
    return sound_improvements(held_out=True)


# ---- some of what hostile testing found ----------------------------------------------------------------------------


def random_table_log(seed: int) -> tuple[dict[str, Any], Array]:
    """Columns of 40 episodes on six states, and the policy that chose the actions."""
    rng = np.random.default_rng(seed)
    policy, state = rng.dirichlet(np.ones(3), 6), rng.integers(0, 6, 40)
    columns = []
    for _ in range(25):
        action = (rng.random(40)[:, None] > np.cumsum(policy[state], axis=1)).sum(axis=1).clip(max=2)
        after = (state + action + rng.integers(0, 3, 40)) % 6
        columns.append((state, action, policy[state, action], state + rng.normal(size=40), after))
        state = after
    state, action, probability, reward, after = (np.array(one).T.ravel() for one in zip(*columns, strict=True))
    return {
        "observation": state, "action": action, "behaviour_prob": probability, "reward": reward,
        "next_observation": after, "truncated": np.tile(np.arange(25) == 24, 40),
    }, policy  # fmt: skip


@scenario("Hostile testing", f"the logged policy as the target, in {LOGGED_LOGS} logs", "its probabilities are right")
def logged_policy() -> str:
    told = 0
    for seed in range(LOGGED_LOGS):
        columns, policy = random_table_log(seed)
        evaluation = vf.evaluate(vf.Transitions.from_arrays(**columns), policy=policy, discount=DISCOUNT)
        told += any(
            "probabilities" in check.message for check in evaluation.checks if check.outcome in ("warn", "fail")
        )
    return f"told in {told} that they are wrong"


@scenario("Hostile testing", "a `behaviour_prob` of 1.9", "a refusal")
def impossible_probability() -> str:
    columns, _ = random_table_log(0)
    columns["behaviour_prob"][7] = 1.9
    vf.Transitions.from_arrays(**columns)
    return "accepted"


UP, DOWN = np.tile([0.1, 0.8, 0.1], (6, 1)), np.tile([0.8, 0.1, 0.1], (6, 1))


@scenario(
    "Hostile testing",
    "`checkpoint=` with `lambda s: UP[s]`, then with `lambda s: DOWN[s]`",
    "another value, or a refusal",
)
def other_closure() -> str:
    columns, _ = random_table_log(0)
    with tempfile.TemporaryDirectory() as folder:
        vf.save(vf.Transitions.from_arrays(**columns), Path(folder) / "log")
        sharded = vf.load(Path(folder) / "log", memory="stream")
        settings: dict[str, Any] = {"discount": DISCOUNT, "checkpoint": Path(folder) / "checkpoint"}
        first = vf.evaluate(sharded, policy=lambda states: UP[states], **settings)
        second = vf.evaluate(sharded, policy=lambda states: DOWN[states], **settings)
    return "the first value" if first.policy_value == second.policy_value else "another value"


@scenario("Hostile testing", "4,000 JSON lines, each with a new key", "a second")
def new_keys() -> str:
    lines = [json.dumps({"obs": [0.1 * n], "reward": 1.0, "done": n % 9 == 8, f"key-{n}": 0}) for n in range(4000)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_text("\n".join(lines) + "\n")
        started = time.monotonic()
        try:
            vf.load(path)
        finally:
            seconds = time.monotonic() - started
    return "at most a second" if seconds < 1 else f"{seconds:.0f} seconds"


# ---- the table -----------------------------------------------------------------------------------------------------


def stored() -> dict[str, str]:
    """The answers of version 0.2."""
    return dict(json.loads(STORED.read_text())) if STORED.exists() else {}


def table_of(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The lines of the table; a scenario without an answer of version 0.2 was not possible there."""
    lines = ["| log and question | truth | version 0.2 | now |", "|---|---|---|---|"]
    item = ""
    for name, one in SCENARIOS.items():
        if one.item != item:
            item = one.item
            lines.append(f"| **{item}** | | | |")
        lines.append(f"| {one.what} | {one.truth} | {before.get(name, 'not possible')} | {now[name]} |")
    return lines


def rows_on_page() -> dict[str, str]:
    """The answers in the last column of the page, by scenario."""
    inside = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    cells = [line.strip("| ").split(" | ") for line in inside.splitlines() if line.startswith("| ")]
    answers = {row[0]: row[-1] for row in cells if len(row) >= 3}
    return {name: answers.get(one.what, "") for name, one in SCENARIOS.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run the scenarios; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m coverage_study.advice", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="NAME", help=f"{', '.join(SCENARIOS)}.")
    parser.add_argument("--before", action="store_true", help="Store the answers as those of version 0.2.")
    options = parser.parse_args(arguments)
    answers = {} if options.before else rows_on_page()
    for name in options.only or SCENARIOS:
        started = time.monotonic()
        answers[name] = answer_of(name)
        print(f"{name:32}{answers[name]}  ({time.monotonic() - started:.1f} s)", flush=True)
    if options.before:
        STORED.write_text(json.dumps({**stored(), **answers}, indent=1) + "\n")
        return 0
    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    table = "\n".join(table_of(stored(), answers))
    write_bytes(PAGE, f"{before}{BEGIN}\n\n{table}\n\n{END}{after}".encode(), force=True)
    print(f"Wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
