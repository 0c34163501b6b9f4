"""A clinical log with gaps: what comes of removing rows with missing values, and of flagging them.

Patients have 44 numbers and a text every step, of which two numbers and the text have gaps; lactate is measured less
often where a patient looks well, creatinine where one is very ill, and the policy depends on lactate and on whether it
was measured. Prints coverage and
verdicts of both ways to deal with the gaps; the truth is simulated.

    python -m coverage_study.clinical --logs 20
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

import valuefit as vf
from coverage_study.records import generator
from coverage_study.worlds import Array
from valuefit.checks.verdict import verdict_of

DISCOUNT, PATIENTS, STEPS, ROLLOUTS = 0.95, 200, 60, 200_000
NUMBERS = 44  # columns of numbers: severity, lactate, creatinine, and others that do not matter
WARDS = np.array(["intensive care", "surgery", "internal"])
DEATH, TREATMENT = -10.0, 0.3  # reward of dying, cost of a treatment


class ClinicalLog(NamedTuple):
    """columns: as `valuefit.load` takes them, with `names` as the observation. policy: the target. truth: its value."""

    columns: dict[str, Array]
    names: dict[str, list[str]]
    policy: Any
    truth: float

    def without_gaps(self) -> dict[str, Array]:
        """The columns without the rows in which something is missing."""
        complete = np.ones(len(self.columns["reward"]), bool)
        for name in self.names["obs"]:
            values = self.columns[name]
            complete &= np.array([value is not None and value == value for value in values])
        return {name: values[complete] for name, values in self.columns.items()}


def clinical_log(rng: np.random.Generator, patients: int = PATIENTS) -> ClinicalLog:
    """The log of so many patients, each of at most STEPS steps, by a behaviour that treats at random."""
    steps = []
    state, alive = _admitted(patients, rng), np.arange(patients)
    for step in range(STEPS):
        seen = _measured(state, rng)
        action = (rng.random(len(state)) < 0.5).astype(int)
        after, reward, ended = _next(state, action, rng)
        steps.append({**seen, "patient": alive, "hour": np.full(len(state), step), "treated": action, "reward": reward,
                      "terminated": ended, "truncated": ~ended & (step == STEPS - 1)})  # fmt: skip
        state, alive = after[~ended], alive[~ended]
    columns = {name: np.concatenate([one[name] for one in steps]) for name in steps[0]}
    order = np.lexsort((columns["hour"], columns["patient"]))
    columns = {name: values[order] for name, values in columns.items()}
    names = {"obs": [name for name in steps[0] if name in OBSERVED], "episode": "patient", "step": "hour"}
    columns["behaviour_prob"] = np.full(len(order), 0.5)
    return ClinicalLog(columns, {**names, "action": "treated"}, policy, _truth())


OTHERS = tuple(f"lab {number}" for number in range(NUMBERS - 3))
OBSERVED = ("severity", "lactate", "creatinine", *OTHERS, "ward")


def policy(observations: Array) -> Array:
    """The target: treats high lactate, and the severely ill where it was not measured."""
    severity, lactate = observations[:, 0], observations[:, 1]
    treats = np.where(np.isnan(lactate), severity > 0.5, lactate > 0.3)
    treat = np.where(treats, 0.8, 0.2)
    return np.column_stack([1 - treat, treat])


def _admitted(count: int, rng: np.random.Generator) -> Array:
    """Severity, creatinine and the ward of each patient."""
    return np.column_stack([rng.normal(0.5, 0.7, count), rng.normal(0, 1, count), rng.integers(0, 3, count)])


def _measured(state: Array, rng: np.random.Generator, *, others: bool = True) -> dict[str, Array]:
    """What is recorded of each patient."""
    severity, creatinine, ward = state.T
    lactate = severity + 0.3 * rng.standard_normal(len(state))
    lactate[rng.random(len(state)) < 0.2 / (1 + np.exp(3 * severity))] = np.nan
    seen: dict[str, Array] = {"severity": severity, "lactate": lactate}
    if others:
        missing = rng.random(len(state)) < 0.7 / (1 + np.exp(-3 * (severity - 1)))
        seen["creatinine"] = np.where(missing, np.nan, creatinine)
        seen |= {name: rng.standard_normal(len(state)) for name in OTHERS}
        words = WARDS[ward.astype(int)].astype(object)
        words[rng.random(len(state)) < 0.04] = None
        seen["ward"] = words
    return seen


def _next(state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """States after a step, rewards, and who died."""
    severity, creatinine, ward = state.T
    dies = rng.random(len(state)) < 0.12 / (1 + np.exp(-2.5 * (severity - 1.2)))
    after = 0.9 * severity + 0.12 + 0.1 * (ward == 0) - 0.35 * action + 0.3 * rng.standard_normal(len(state))
    creatinine = 0.8 * creatinine + 0.3 * severity + 0.5 * rng.standard_normal(len(state))
    reward = -np.maximum(severity, 0) - TREATMENT * action + DEATH * dies
    return np.column_stack([after, creatinine, ward]), reward, dies


_known: list[float] = []


def _truth() -> float:
    """The mean discounted return of the target, simulated once."""
    if not _known:
        rng = generator("clinical-truth", 0)
        state, total, factor = _admitted(ROLLOUTS, rng), 0.0, 1.0
        while len(state) and factor > 1e-4:
            seen = _measured(state, rng, others=False)
            treat = policy(np.column_stack([seen["severity"], seen["lactate"]]))[:, 1]
            state, reward, ended = _next(state, (rng.random(len(state)) < treat).astype(int), rng)
            total, factor, state = total + factor * reward.sum(), factor * DISCOUNT, state[~ended]
        _known.append(total / ROLLOUTS)
    return _known[0]


def answers(log: ClinicalLog, values: str = "state-action") -> dict[str, Any]:
    """The evaluation with the rows of gaps removed, and with gaps flagged."""
    settings: dict[str, Any] = {"policy": log.policy, "values": values, "discount": DISCOUNT, "columns": log.names}
    return {
        "rows removed": vf.evaluate(log.without_gaps(), **settings),
        "gaps flagged": vf.evaluate(log.columns, missing="flag", **settings),
    }


NEW_CHECKS = ("consecutive steps", "last steps")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--patients", type=int, default=PATIENTS)
    options = parser.parse_args(arguments)
    print("| route | gaps | truth | mean estimate | covers | verdicts | without the checks of steps |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for values in ("state", "state-action"):
        found: dict[str, list[tuple[float, bool, str, str]]] = {}
        for number in range(options.logs):
            log = clinical_log(generator("clinical", number), options.patients)
            for way, evaluation in answers(log, values).items():
                value = evaluation.policy_value
                low, high = value.interval or (-np.inf, np.inf)
                others = verdict_of([check for check in evaluation.checks if check.name not in NEW_CHECKS])
                row = value.estimate, bool(low <= log.truth <= high), evaluation.verdict.level, others.level
                found.setdefault(way, []).append(row)
        for way, rows in found.items():
            estimates, covers, verdicts, before = zip(*rows, strict=True)
            print(
                f"| {values} | {way} | {log.truth:.3f} | {np.mean(estimates):.3f} | {sum(covers)} of {len(covers)} | "
                f"{_counted(verdicts)} | {_counted(before)} |", flush=True,
            )  # fmt: skip
    return 0


def _counted(verdicts: tuple[str, ...]) -> str:
    return ", ".join(f"{count} {level}" for level, count in Counter(verdicts).most_common())


if __name__ == "__main__":
    sys.exit(main())
