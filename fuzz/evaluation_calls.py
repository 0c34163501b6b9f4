"""`evaluate` and what follows from it: intervals, comparisons, bounds under hidden confounding, the estimator."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import valuefit as vf
from fuzz.calls import MAX_SOLVE_SECONDS, compile_solvers, mutate_arguments, random_log, stop_after
from fuzz.confounding import lowest_value
from fuzz.feature_calls import feature_spec
from fuzz.logs import check_evaluate
from fuzz.mutators import TEXTS, Rng, chance, number, odd_array, pick, scalar
from fuzz.outcome import RIGHT, ask, expect
from fuzz.runner import Target
from fuzz.stored import POLICY, small_log
from valuefit.policies.policy import find_policy

OPTIONS = (
    "discount", "trace", "ridge", "values", "solver", "tol", "max_passes", "seed", "starts", "columns",
    "features", "policy", "interval", "level", "cluster", "checks",
)  # fmt: skip
OTHER_POLICY = POLICY[::-1]
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99, 1e-9, 1 - 1e-9, 1 - 2**-53)
COMPARABLE = 9  # of the first `evaluations`: they have the same clusters and starts, and standard errors
ODDS = (1.0, 1.1, 2.0, 10.0, 1e6)


# ---- evaluate ------------------------------------------------------------------------------------------------


def evaluate_case(rng: Rng, folder: Path) -> str | None:
    """`evaluate` of data of any magnitude against exact LSTD, with equal clusters under other names, or odd options."""
    draw = rng.random()
    if draw < 0.4:
        return check_evaluate(rng, *random_log(rng))
    if draw < 0.5:
        return _check_clusters(rng)
    labels = chance(rng, 0.5)
    log = small_log(labels=labels)
    options: dict[str, Any] = {"discount": 0.9, "features": "one-hot" if labels else "identity"}
    if chance(rng, 0.2):
        options |= {"interval": pick(rng, ["cr3", "cr1"]), "checks": pick(rng, ["standard", "all"])}
    options[pick(rng, OPTIONS)] = scalar(rng)
    if chance(rng, 0.2):
        options["features"] = feature_spec(rng)
    if labels and chance(rng, 0.3):
        options |= {"policy": POLICY, "values": pick(rng, ["state", "state-action"])}
    source: Any = scalar(rng) if chance(rng, 0.05) else log
    done = ask(lambda: vf.evaluate(source, callback=stop_after(MAX_SOLVE_SECONDS), **options))
    _check_evaluation(done)
    values = ask(done.value, odd_array(rng, log.observations[:2]))
    expect(np.isfinite(values).all(), "a value is not finite")
    return None


def _check_evaluation(done: vf.Evaluation) -> None:
    """Its numbers are finite, and it is shown."""
    estimate, error = done.policy_value.estimate, done.policy_value.standard_error
    expect(math.isfinite(estimate), f"the policy value is {estimate}")
    expect(error is None or (math.isfinite(error) and error >= 0), f"the standard error is {error}")
    expect(not np.isnan(done.policy_value.interval or ()).any(), f"the interval is {done.policy_value.interval}")
    ask(repr, done)
    ask(done.summary)


@cache
def _clustered_error() -> float | None:
    log = small_log()
    done = vf.evaluate(log, cluster=log.episode // 2, discount=0.9, features="identity")
    return done.policy_value.standard_error


def _check_clusters(rng: Rng) -> str | None:
    """Clusters of two episodes: however they are named, the standard error is the same."""
    log = small_log()
    ids = log.episode // 2
    names: list[Any] = [
        ids + 2**60, ids.astype(float), ids.astype(np.uint64), -ids, (ids * 7).tolist(), [f"p{one}" for one in ids],
        np.array([f"p{one}" for one in ids], object), np.ma.masked_array(ids, mask=False), ids.astype(np.int8),
    ]  # fmt: skip
    valid = chance(rng, 0.5)
    given = pick(rng, names) if valid else odd_array(rng, ids)
    done = ask(lambda: vf.evaluate(log, cluster=given, discount=0.9, features="identity"))
    _check_evaluation(done)
    error = done.policy_value.standard_error
    if not valid:
        return None
    expect(error == _clustered_error(), f"the standard error is {error} instead of {_clustered_error()}")
    return RIGHT


# ---- intervals -----------------------------------------------------------------------------------------------


@cache
def evaluations() -> list[vf.Evaluation]:
    """Evaluations of one log: by several methods, with clusters, of a stream, and without a standard error."""
    log = small_log()
    settings: list[dict[str, Any]] = [
        {}, {"interval": "cr1"}, {"features": "kernel:landmarks=4"},
        {"features": "fourier:order=1"}, {"trace": 1.0}, {"ridge": 0.1},
        {"solver": "pdbg", "max_passes": 3}, {"features": "tiles"}, {"cluster": log.episode // 2},
        {"starts": np.ones((2, 2))},
    ]  # fmt: skip
    made = [vf.evaluate(log, **{"discount": 0.9, "features": "identity", **one}) for one in settings]
    made += [vf.evaluate(log[part], discount=0.9, features="identity") for part in (slice(0, 4), slice(0, 1))]
    return made


@cache
def table_evaluations() -> list[vf.Evaluation]:
    """Evaluations of one log of numbered states: two policies, by state values and by state-action values."""
    log = small_log(labels=True, n=80)
    options: dict[str, Any] = {"discount": 0.9, "features": "one-hot"}
    made = [vf.evaluate(log, policy=one, values=values, **options) for one in (POLICY, OTHER_POLICY)
            for values in ("state", "state-action")]  # fmt: skip
    return [*made, vf.evaluate(log, **options), vf.evaluate(log, policy=lambda states: POLICY[states], **options)]


def interval_case(rng: Rng, folder: Path) -> str | None:
    """`policy_value.interval_at` against Student's t of SciPy, and `value_interval`."""
    done = pick(rng, [*evaluations(), *table_evaluations()])
    if chance(rng, 0.1):
        done = ask(vf.evaluate, random_log(rng)[0], discount=0.9, features="identity")
    level = pick(rng, LEVELS) if chance(rng, 0.6) else scalar(rng)
    if chance(rng, 0.5):
        return _check_value_intervals(rng, done, level)
    side = pick(rng, ["both", "lower", "upper"]) if chance(rng, 0.8) else scalar(rng)
    found = ask(done.policy_value.interval_at, level, side)
    value = done.policy_value
    expect((found is None) == (value.standard_error is None), "an interval without a standard error, or the reverse")
    if found is None or value.effective_episodes is None:
        return None
    freedom, tail = max(value.effective_episodes - 1, 1.0), (1 - float(level)) / (2 if side == "both" else 1)
    tail = min(tail, 1 - 2**-53)  # a level that rounds to 0
    half = stats.t.isf(tail, freedom) * value.standard_error + (value.solver_error or 0.0)
    wanted = (
        -math.inf if side == "upper" else value.estimate - half,
        math.inf if side == "lower" else value.estimate + half,
    )
    same = np.allclose(found, wanted, rtol=1e-6, atol=1e-6 * abs(half))
    expect(same, f"the interval at {level!r} ({side}) is {found}, by Student's t {wanted}")
    return RIGHT


def _check_value_intervals(rng: Rng, done: vf.Evaluation, level: Any) -> str | None:
    """Intervals contain their values and are the wider if they hold at once."""
    observations: Any = done.log.observations[:5]
    odd = chance(rng, 0.4)
    if odd:
        observations = odd_array(rng, observations)
    actions = pick(rng, [[0, 1, 2, 0, 1], odd_array(rng, np.arange(5) % 3)]) if chance(rng, 0.2) else None
    simultaneous = chance(rng, 0.3) if chance(rng, 0.9) else scalar(rng)
    found = ask(done.value_interval, observations, actions, level, simultaneous)
    values = ask(done.value, observations, actions)
    expect(found.shape == (len(values), 2) and not np.isnan(found).any(), "intervals of another shape, or NaN")
    slack = 1e-12 * np.abs(values)  # intervals at a level near 0 are points, up to rounding
    expect(((found[:, 0] <= values + slack) & (values - slack <= found[:, 1])).all(), "a value is outside its interval")
    if simultaneous is not True:
        return None if odd else RIGHT
    single = ask(done.value_interval, observations, actions, level)
    expect((np.ptp(found, axis=1) >= np.ptp(single, axis=1) * (1 - 1e-9)).all(), "narrower together")
    return RIGHT


# ---- comparisons ---------------------------------------------------------------------------------------------


def compare_case(rng: Rng, folder: Path) -> str | None:
    """`compare` of two evaluations, a list or a dict of them, also of different logs, and odd arguments."""
    given = _compared(rng)
    options: dict[str, Any] = {}
    if chance(rng, 0.4):
        options["level"] = pick(rng, LEVELS) if chance(rng, 0.5) else scalar(rng)
    kind = int(rng.integers(3))
    if kind == 0:
        pair = ask(vf.compare, *given[:2], **options)
        _check_pair(pair, given[0], given[1])
        back = ask(vf.compare, given[1], given[0], **options)
        mirrored = -back.interval[1], -back.interval[0]
        expect(back.estimate == -pair.estimate and _close(pair.interval, mirrored), "exchanged, the difference differs")
        expect(_close(pair.p_value, back.p_value), "exchanged, the p-value differs")
        return RIGHT
    odd_names = [None, (1, 2), number(rng), *TEXTS]
    names = [pick(rng, odd_names) if chance(rng, 0.1) else f"policy {i}" for i in range(len(given))]
    several: Any = dict(zip(names, given, strict=True)) if kind == 1 else given
    found = ask(vf.compare, several, **options)
    ask(repr, found)
    ask(found.summary)
    ask(lambda: json.dumps(found.to_dict(), allow_nan=False))
    count = len(several)
    expect(len(found.pairs) == count * (count - 1) // 2, f"{len(found.pairs)} pairs of {count} evaluations")
    for pair, (i, j) in zip(found.pairs, zip(*np.triu_indices(count, 1), strict=True), strict=True):
        _check_pair(pair, found.evaluations[i], found.evaluations[j])
        single = ask(vf.compare, found.evaluations[i], found.evaluations[j], **options)
        wider = np.ptp(pair.interval) >= np.ptp(single.interval) * (1 - 1e-9)
        other_clusters = pair.standard_error != single.standard_error  # those that suit all pairs
        expect(wider or other_clusters, f"{pair.interval} among several is narrower than {single.interval}")
    expect(np.array_equal(found.estimate, -found.estimate.T), "the matrix of differences is not antisymmetric")
    return RIGHT


def _compared(rng: Rng) -> list[Any]:
    """Two to four evaluations, mostly of one log; some are no evaluations."""
    draw = rng.random()
    if draw < 0.15:
        log = random_log(rng)[0]
        options = [{"trace": 0.0}, {"trace": 1.0}, {"ridge": 0.01}][: int(rng.integers(2, 4))]
        return [ask(vf.evaluate, log, discount=0.9, features="identity", **one) for one in options]
    group: list[Any] = table_evaluations() if draw < 0.5 else evaluations()[:COMPARABLE]
    if draw > 0.85:
        group = [*table_evaluations(), *evaluations()]
    found = [pick(rng, group) for _ in range(int(rng.integers(2, 5)))]
    if chance(rng, 0.1):
        found[int(rng.integers(len(found)))] = scalar(rng)
    if chance(rng, 0.1):
        found[0] = replace(pick(rng, group), discount=0.5)
    return found


def _check_pair(pair: vf.Comparison, first: vf.Evaluation, second: vf.Evaluation) -> None:
    ask(repr, pair)
    estimate = first.policy_value.estimate - second.policy_value.estimate
    low, high = pair.interval
    expect(pair.estimate == estimate, f"the difference is {pair.estimate}, that of the values {estimate}")
    expect(math.isfinite(pair.standard_error) and pair.standard_error >= 0, f"standard error {pair.standard_error}")
    expect(low <= estimate <= high, f"the difference {estimate} is outside {pair.interval}")
    expect(0 <= pair.p_value <= 1, f"the p-value is {pair.p_value}")
    significant = pair.p_value < (1 - pair.level) * (1 - 1e-6)
    expect(not (low > 0 or high < 0) or pair.p_value <= (1 - pair.level) * (1 + 1e-6), "p-value against the interval")
    expect(not significant or low > 0 or high < 0, "the interval contains 0 against the p-value")


def _close(x: Any, y: Any) -> bool:
    return bool(np.allclose(x, y, rtol=1e-9, atol=0))


# ---- hidden confounding --------------------------------------------------------------------------------------


def sensitivity_case(rng: Rng, folder: Path) -> str | None:
    """`sensitivity` and `breakdown` against value iteration in plain loops."""
    done = _confounded(rng) if chance(rng, 0.95) else pick(rng, [*table_evaluations(), *evaluations()])
    if chance(rng, 0.4):
        return _check_breakdown(rng, done)
    odds: Any = pick(rng, ODDS) if chance(rng, 0.5) else pick(rng, [[1.0, 2.0, 4.0], scalar(rng), number(rng)])
    found = ask(done.sensitivity, odds)
    ask(repr, found)
    lower, upper = np.ravel(found.lower), np.ravel(found.upper)
    expect(np.isfinite([lower, upper]).all(), f"the bounds are {lower} and {upper}")
    scale = 1e-7 * max(abs(done.log.reward).max(), 1e-300) / (1 - done.discount)
    expect((lower <= upper + scale).all(), "a lower bound exceeds the upper one")
    order = np.argsort(np.ravel(found.odds), kind="stable")
    expect((np.diff(lower[order]) <= scale).all(), "a larger factor gives a narrower bound")
    if done.policy.table is None or done.starts is not None:
        return None
    for factor, low, high in zip(np.ravel(found.odds), lower, upper, strict=True):
        wanted = [
            sign * lowest_value(done.log, done.policy.table, done.discount, float(factor), sign) for sign in (1, -1)
        ]
        expect(np.allclose([low, high], wanted, rtol=1e-7, atol=scale), f"bounds {low}, {high} instead of {wanted}")
    return RIGHT


def _confounded(rng: Rng) -> vf.Evaluation:
    """An evaluation with another log, policy and discount; nothing else enters the bounds."""
    n, states, actions = int(rng.integers(2, 25)), int(rng.integers(1, 5)), int(rng.integers(2, 4))
    last = rng.random(n) < 0.3
    last[-1] = True
    log = vf.Transitions.from_arrays(
        pick(rng, [1, 1, 2**60 + 1]) * rng.integers(0, states, n) if chance(rng, 0.2) else rng.integers(0, states, n),
        np.round(rng.normal(size=n), 1) * pick(rng, [1.0, 1.0, 1.0, 1e-55, 1e12, 1e100]),
        terminated=last, episode=np.cumsum(last) - last, action=rng.integers(0, actions, n),
    )  # fmt: skip
    table = rng.dirichlet(np.ones(actions), states)
    if chance(rng, 0.3):
        table = np.eye(actions)[rng.integers(0, actions, states)]
    done = table_evaluations()[0]
    fit = replace(done.fit, log=log, policy=find_policy(table), discount=pick(rng, [0.0, 0.5, 0.9, 0.9]))
    return replace(
        done, fit=fit,
        starts=pick(rng, [None, None, None, np.array([0]), np.array([7])]),
    )  # fmt: skip


def _check_breakdown(rng: Rng, done: vf.Evaluation) -> str | None:
    """Just below the factor the bounds exclude the other value, just above they do not."""
    confounded = _confounded(rng)
    same = replace(confounded, fit=replace(confounded.fit, discount=done.discount))
    others = [*table_evaluations(), *[same] * 6]
    other: Any = pick(rng, others) if chance(rng, 0.5) else scalar(rng)
    if chance(rng, 0.5):
        other = float(np.round(rng.normal(), 1))
    factor = ask(done.breakdown, other)
    expect(factor >= 1, f"the breakdown is {factor}")
    if not isinstance(other, int | float):
        return None

    def separated(odds: float) -> bool:
        bounds = ask(done.sensitivity, odds)
        return not bounds.lower <= other <= bounds.upper

    expect(factor == 1 or separated(min(factor / 1.001, 999.0)), f"the bounds contain {other} before {factor}")
    expect(factor == math.inf or not separated(factor * 1.001), f"the bounds do not contain {other} at {factor}")
    return RIGHT


# ---- the estimator -------------------------------------------------------------------------------------------


def estimator_case(rng: Rng, folder: Path) -> str | None:
    log = small_log()
    rows = {"X": log.observations[log.now], "y": log.reward}
    more = {
        "terminated": log.terminated,
        "next_X": log.observations[log.now],
        "ratio": log.ratio,
        "episode": log.episode,
    }
    rows |= {name: array for name, array in more.items() if chance(rng, 0.5)}
    settings: dict[str, Any] = {"discount": 0.9}
    if chance(rng, 0.5):
        settings[pick(rng, ["features", "discount", "trace", "ridge", "solver", "tol", "max_passes", "seed"])] = scalar(
            rng
        )
    if chance(rng, 0.5):
        rows = mutate_arguments(rng, rows)
    estimator = ask(lambda: vf.PolicyEvaluator(**settings))
    ask(lambda: estimator.fit(**rows))
    expect(np.isfinite(estimator.theta_).all(), "theta is not finite")
    values = ask(estimator.predict, log.observations)
    expect(values.shape == (len(log.observations),) and np.isfinite(values).all(), "predicted values are not finite")
    score = ask(lambda: estimator.score(**rows))
    expect(math.isfinite(score), f"the score is {score}")  # above 0 where products of episodes estimate the error
    values = ask(estimator.predict, odd_array(rng, log.observations))
    expect(np.isfinite(values).all(), "a predicted value is not finite")
    return None


def prepare() -> None:
    compile_solvers()
    evaluations()
    table_evaluations()


TARGETS = [
    Target("evaluate", evaluate_case, prepare=compile_solvers),
    Target("intervals", interval_case, prepare=prepare),
    Target("compare", compare_case, prepare=prepare),
    Target("sensitivity", sensitivity_case, prepare=prepare),
    Target("estimator", estimator_case, prepare=compile_solvers),
]
