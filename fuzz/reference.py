"""What a log means, in plain Python over lists, and exact LSTD in rational numbers; shares no code with valuefit."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import valuefit as vf
from fuzz.outcome import expect

Columns = dict[str, list[Any]]  # name -> one value per row: a number, text, None (missing) or a list of numbers

ALIASES = {
    "obs": ("obs", "observation", "observations"),
    "next_obs": ("next_obs", "next_observation", "next_observations", "new_obs"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminations", "terminals", "terminateds"),
    "truncated": ("truncated", "truncations", "timeouts", "truncateds"),
    "done": ("done", "dones"),
    "episode": ("episode", "episode_id", "eps_id"),
    "step": ("step", "t"),
    "behaviour_prob": ("behaviour_prob", "behavior_prob", "action_prob"),
    "target_prob": ("target_prob",),
    "ratio": ("ratio",),
}
VECTORS = ("obs", "next_obs", "action")
MAX_NUMBER = 1e100  # larger rewards or observations may be refused


class Unknown(Exception):
    """The reference does not decide whether this is a log, or which one."""


class Invalid(Exception):
    """This is no log: a value that is needed is missing or not finite."""


class Step(NamedTuple):
    """One step; next is None where the episode terminated."""

    episode: Any
    obs: tuple[Any, ...]
    next: tuple[Any, ...] | None
    reward: Any
    terminated: bool
    truncated: bool
    ratio: float
    action: tuple[Any, ...] | None


class Log(NamedTuple):
    """Steps in order. labels: whether observations are integers that name states.

    exact: whether every number is exact in float64; otherwise the log may be refused, but not be loaded as another.
    """

    steps: list[Step]
    labels: bool
    exact: bool = True


# ---- the steps of a table --------------------------------------------------------------------------


def read_log(columns: Columns) -> Log:
    """The log that a table means; raises Unknown where it is unusual, and Invalid where it must be refused."""
    if not all(isinstance(values, list) for values in columns.values()):
        raise Unknown
    fields = {field: found for field in ALIASES if (found := _find(field, columns))}
    if any("log_prob" in name or name == "action_logp" for name in columns) or not {"obs", "reward"} <= fields.keys():
        raise Unknown
    n = len(columns[fields["reward"][0]])
    if n == 0 or any(len(columns[name]) != n for names in fields.values() for name in names):
        raise Unknown
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        if name[-1:].isdigit() and any(isinstance(value, list | tuple) for value in known):
            raise Unknown  # lists in numbered columns
        if any(len({isinstance(value, kind) for value in known}) > 1 for kind in (list | tuple, bool)):
            raise Unknown  # numbers next to lists or flags
    scalars = {
        field: [_scalar(v) for v in columns[names[0]]] for field, names in fields.items() if field not in VECTORS
    }
    vectors = {field: _vectors(columns, fields[field]) for field in VECTORS if field in fields}
    labels = fields["obs"][0] in ALIASES["obs"] and all(type(value) is int for value in columns[fields["obs"][0]])
    if labels and any(
        type(value) is float and abs(value) > 2**53 for row in vectors.get("next_obs", []) for value in row
    ):
        raise Unknown  # no integer, though the states are integers
    if "next_obs" in fields and _nesting(columns, fields["next_obs"]) not in (None, _nesting(columns, fields["obs"])):
        raise Unknown
    if "next_obs" in fields and fields["obs"][0][-1].isdigit() and len(fields["next_obs"]) != len(fields["obs"]):
        raise Unknown
    order = _order(scalars, n)
    scalars = {field: [values[i] for i in order] for field, values in scalars.items()}
    vectors = {field: [values[i] for i in order] for field, values in vectors.items()}
    if any(_is_missing(value) for value in scalars["reward"]):
        raise Invalid("a reward is missing or not finite")
    if any(_is_missing(value) for row in vectors["obs"] for value in row):
        raise Invalid("an observation is missing or not finite")
    if any(_is_missing(value) for field in ("terminated", "truncated", "done") for value in scalars.get(field, [])):
        raise Invalid("a flag is missing")
    for field in ("reward", "ratio", "behaviour_prob", "target_prob"):
        if field in scalars and not all(_is_number(value) for value in scalars[field]):
            raise Unknown
    if not all(_complete(row) and len(row) == len(vectors["obs"][0]) for row in vectors["obs"]):
        raise Unknown
    if not all(_complete(row) for row in vectors.get("action", [])):
        raise Unknown
    terminated, truncated = _ends(scalars, n)
    episode = scalars.get("episode") or _count_episodes(terminated, truncated, scalars, vectors)
    last = [t == n - 1 or episode[t] != episode[t + 1] for t in range(n)]
    if any((terminated[t] or truncated[t]) and not last[t] for t in range(n)):
        raise Unknown
    ratio = _ratios(scalars, n)
    steps: list[Step] = []
    for t in range(n):
        after = None if terminated[t] else _next(vectors, t, last[t])
        if after is None and not terminated[t]:  # the last step has no next observation and is left out
            if steps and t and not last[t - 1]:
                steps[-1] = steps[-1]._replace(truncated=True)
            continue
        action = vectors["action"][t] if "action" in vectors else None
        steps.append(
            Step(
                episode[t],
                vectors["obs"][t],
                after,
                scalars["reward"][t],
                terminated[t],
                truncated[t],
                ratio[t],
                action,
            )
        )
    if not steps:
        raise Unknown
    numbers_read = [value for values in scalars.values() for value in values]
    numbers_read += [value for rows in vectors.values() for row in rows for value in row]
    return Log(steps, labels, all(isinstance(v, str) or v is None or abs(v) <= 2**53 for v in numbers_read))


def _find(field: str, columns: Columns) -> tuple[str, ...]:
    """The columns of a field: one by an alias, or several that are numbered."""
    found: list[tuple[str, ...]] = [(alias,) for alias in ALIASES[field] if alias in columns]
    if field in VECTORS:
        for alias in ALIASES[field]:
            pattern = re.compile(re.escape(alias) + "_?([0-9]{1,9})")
            numbered = sorted((int(match[1]), name) for name in columns if (match := pattern.fullmatch(name)))
            if len({number for number, _ in numbered}) < len(numbered):
                raise Unknown
            if numbered:
                found.append(tuple(name for _, name in numbered))
    if len(found) > 1:
        raise Unknown
    return found[0] if found else ()


def _scalar(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 1 and not isinstance(value[0], str):
        value = value[0]
    if isinstance(value, Decimal):
        return float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Unknown


def _vectors(columns: Columns, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    rows = []
    for parts in zip(*(columns[name] for name in names), strict=True):
        row: list[Any] = []
        for part in parts:
            row.extend(part if isinstance(part, list | tuple) else [part])
        if any(isinstance(value, list | tuple | str | bytes) for value in row):
            raise Unknown
        rows.append(tuple(_scalar(value) for value in row))
    return rows


def _nesting(columns: Columns, names: tuple[str, ...]) -> bool | None:
    """Whether rows are vectors: numbered columns, or a list in the first known entry; None if all are missing."""
    if names[0][-1].isdigit():
        return True
    return next((isinstance(value, list | tuple) for value in columns[names[0]] if value is not None), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value) and abs(value) < MAX_NUMBER


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _complete(row: Sequence[Any]) -> bool:
    return len(row) > 0 and all(_is_number(value) for value in row)


def _order(scalars: Columns, n: int) -> list[int]:
    """Rows sorted by episode, in the order of first appearance, and then by step."""
    if "episode" not in scalars:
        return list(range(n))
    episode, step = scalars["episode"], scalars.get("step", list(range(n)))
    if not all(_is_id(value) for value in episode) or len({type(value) is str for value in episode}) > 1:
        raise Unknown
    if not all(_is_number(value) and not isinstance(value, bool) for value in step):
        raise Unknown
    if len(set(zip(episode, step, strict=True))) < n:
        raise Unknown
    first: dict[Any, int] = {}
    for row, value in enumerate(episode):
        first.setdefault(value, row)
    return sorted(range(n), key=lambda row: (first[episode[row]], step[row]))


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return value != "" and "\0" not in value
    return _is_number(value) and not isinstance(value, bool) and value % 1 == 0 and -(2**63) <= value < 2**63


def _ends(scalars: Columns, n: int) -> tuple[list[bool], list[bool]]:
    flags = {name: scalars[name] for name in ("terminated", "truncated", "done") if name in scalars}
    if not flags or any(value not in (0, 1) for values in flags.values() for value in values):
        raise Unknown
    if "done" in flags and len(flags) > 1:
        raise Unknown
    terminated = flags.get("done", flags.get("terminated", [0] * n))
    return [bool(value) for value in terminated], [bool(value) for value in flags.get("truncated", [0] * n)]


def _count_episodes(terminated: list[bool], truncated: list[bool], scalars: Columns, vectors: Columns) -> list[int]:
    if "truncated" not in scalars and "next_obs" in vectors:  # truncation is inferred from the next observations
        raise Unknown
    if "step" in scalars:
        raise Unknown
    episode = [0]
    for end, cut in zip(terminated[:-1], truncated[:-1], strict=True):
        episode.append(episode[-1] + int(end or cut))
    return episode


def _ratios(scalars: Columns, n: int) -> list[float]:
    behaviour = scalars.get("behaviour_prob", [1.0] * n)
    if any(value <= 0 for value in behaviour) or any(value < 0 for value in scalars.get("ratio", [])):
        raise Unknown
    if "ratio" in scalars:
        if "target_prob" in scalars:
            raise Unknown
        return [float(value) for value in scalars["ratio"]]
    if "target_prob" not in scalars:
        return [1.0] * n
    if "behaviour_prob" not in scalars or any(value < 0 for value in scalars["target_prob"]):
        raise Unknown
    return [float(p) / float(q) for p, q in zip(scalars["target_prob"], behaviour, strict=True)]


def _next(vectors: Columns, t: int, last: bool) -> tuple[Any, ...] | None:
    """The observation after a step that did not terminate; None where it is missing at the end of an episode."""
    if "next_obs" not in vectors:
        return None if last else vectors["obs"][t + 1]
    after = vectors["next_obs"][t]
    missing = all(value is None or value != value for value in after)
    if missing and last:
        return None
    if not _complete(after) or len(after) != len(vectors["obs"][t]):
        raise Unknown
    return tuple(after)


# ---- comparison ------------------------------------------------------------------------------------


def compare_log(log: vf.Transitions, expected: Log) -> None:
    """Fail unless valuefit's log has exactly these steps."""
    steps = expected.steps
    expect(len(log) == len(steps), f"{len(log)} steps instead of {len(steps)}")
    expect(len(np.unique(log.episode)) == len({step.episode for step in steps}), "episodes were merged or split")
    begins = [True] + [one.episode != two.episode for one, two in pairwise(steps)]
    expect(log.begins.tolist() == begins, "episodes begin at other steps")
    now = log.observations[log.now].tolist()
    after = log.observations[log.next].tolist()
    for t, step in enumerate(steps):
        expect(_close(log.reward[t], step.reward), f"reward {log.reward[t]} instead of {step.reward} at {t}")
        expect(bool(log.terminated[t]) == step.terminated, f"terminated {log.terminated[t]} at {t}")
        expect(bool(log.truncated[t]) == step.truncated, f"truncated {log.truncated[t]} at {t}")
        expect(math.isclose(log.ratio[t], step.ratio, rel_tol=1e-12), f"ratio {log.ratio[t]} not {step.ratio} at {t}")
        expect(_same(now[t], step.obs, expected.labels), f"observation {now[t]} instead of {step.obs} at {t}")
        expect((log.next[t] < 0) == (step.next is None), f"next {log.next[t]} at {t}")
        if step.next is not None:
            expect(_same(after[t], step.next, expected.labels), f"next observation {after[t]}, not {step.next} at {t}")
        if step.action is not None and log.action is not None:
            action = log.action[t].tolist()
            expect(_same(action, step.action, True), f"action {action} instead of {step.action} at {t}")


def _same(found: Any, wanted: tuple[Any, ...], exact: bool) -> bool:
    """Equal numbers: labels of states exactly, others, and whole numbers that the plain read rounded, as float64."""
    values = np.ravel(found).tolist() if isinstance(found, list) else [found]
    if len(values) != len(wanted):
        return False
    rounded = [isinstance(b, float) and abs(b) >= 2**53 for b in wanted]
    return all(a == b or ((r or not exact) and _close(a, b)) for a, b, r in zip(values, wanted, rounded, strict=True))


def _close(one: Any, other: Any) -> bool:
    """Equal as float64; Arrow's conversion of decimals may be off by one unit in the last place."""
    return math.isclose(float(one), float(other), rel_tol=4e-16)


# ---- exact LSTD ------------------------------------------------------------------------------------


class Exact(NamedTuple):
    """H and the minimiser of F(theta) = F* + 1/2 (theta - theta*)' H (theta - theta*), in rational numbers."""

    H: list[list[Fraction]]
    theta: list[Fraction]

    def gap(self, theta: Sequence[float]) -> float:
        """(F(theta) - F*) / (F(0) - F*)."""
        error = [Fraction(float(a)) - b for a, b in zip(theta, self.theta, strict=True)]
        zero = _form(self.H, self.theta)
        return float(_form(self.H, error) / zero) if zero else 0.0


def exact_lstd(
    log: Log,
    rows: Sequence[Sequence[Any]],
    after: Sequence[Sequence[Any]],
    *,
    discount: float,
    trace: float,
    ridge: float,
) -> Exact:
    """The minimiser of the MSPBE with these feature rows; raises Unknown where C is close to singular, or H singular.

    rows, after: features before and after each step (after a terminated step: anything).
    """
    n, d = len(rows), len(rows[0])
    A = [[Fraction(0)] * d for _ in range(d)]
    C = [[Fraction(0)] * d for _ in range(d)]
    b, u = [Fraction(0)] * d, [Fraction(0)] * d
    gamma, decay = Fraction(discount), Fraction(trace)
    previous: Step | None = None
    for step, phi, psi in zip(log.steps, rows, after, strict=True):
        x = [Fraction(value) for value in phi]
        y = [gamma * Fraction(value) for value in psi] if step.next is not None else [Fraction(0)] * d
        carried = decay * gamma if previous is not None and previous.episode == step.episode else Fraction(0)
        u = [Fraction(step.ratio) * (one + carried * old) for one, old in zip(x, u, strict=True)]
        for i in range(d):
            b[i] += u[i] * Fraction(step.reward) / n
            for j in range(d):
                A[i][j] += u[i] * (x[j] - y[j]) / n
                C[i][j] += x[i] * x[j] / n
        previous = step
    _require_rank(C)
    weighted = _solve(C, [[*row, value] for row, value in zip(A, b, strict=True)])  # C^-1 [A b]
    H = [
        [sum(A[k][i] * weighted[k][j] for k in range(d)) + Fraction(ridge) * (i == j) for j in range(d)]
        for i in range(d)
    ]
    right = [[sum((A[k][i] * weighted[k][d] for k in range(d)), Fraction(0))] for i in range(d)]
    return Exact(H, [row[0] for row in _solve(H, right)])


def _require_rank(C: list[list[Fraction]]) -> None:
    """Raise Unknown where valuefit may treat an eigenvalue of C as 0: below 1e-13 of the largest, by its definition."""
    largest = max(abs(value) for row in C for value in row)
    if largest == 0 or np.linalg.eigvalsh([[float(value / largest) for value in row] for row in C])[0] < 1e-11:
        raise Unknown


def _solve(matrix: list[list[Fraction]], right: list[list[Fraction]]) -> list[list[Fraction]]:
    """matrix^-1 right by Gauss-Jordan elimination."""
    rows = [[*one, *other] for one, other in zip(matrix, right, strict=True)]
    d = len(matrix)
    for column in range(d):
        pivot = max(range(column, d), key=lambda row: abs(rows[row][column]))
        if rows[pivot][column] == 0:
            raise Unknown
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for row in range(d):
            factor = rows[row][column]
            if row != column and factor:
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [row[d:] for row in rows]


def _form(H: list[list[Fraction]], x: Sequence[Fraction]) -> Fraction:
    return sum((x[i] * H[i][j] * x[j] for i in range(len(x)) for j in range(len(x))), Fraction(0))


def check_solution(log: Log, result: vf.Result, tol: float, *, discount: float, trace: float, ridge: float) -> None:
    """Fail if a solve of this log on its own observations (one-hot for labels) says converged, but is not."""
    theta = result.theta.tolist()
    expect(all(map(math.isfinite, theta)), f"{result.solver} gave a weight that is not finite ({result.status})")
    if result.status != "converged":
        return
    rows, after, used = feature_rows(log, len(theta))
    exact = exact_lstd(log, rows, after, discount=discount, trace=trace, ridge=ridge)
    gap = exact.gap([theta[j] for j in used])
    expect(gap <= 2 * tol, f"{result.solver} converged at tol {tol:g}, but the gap is {gap:.2g}")


def feature_rows(log: Log, count: int) -> tuple[list[Any], list[Any], list[int]]:
    """The observations before and after each step as features, and the columns that are not 0 before every step.

    count: the number of weights that valuefit gave; fails if it is not the number of features.
    """
    now = [step.obs for step in log.steps]
    after = [step.obs if step.next is None else step.next for step in log.steps]
    if log.labels:
        states = sorted({row[0] for row in [*now, *after]})
        now, after = ([[int(row[0] == state) for state in states] for row in rows] for rows in (now, after))
    if log.labels and count > len(now[0]):  # states of steps that were left out
        raise Unknown
    expect(len(now[0]) == count, f"{count} weights for {len(now[0])} features: states were merged")
    used = [j for j in range(count) if any(row[j] for row in now)]
    if not used:
        raise Unknown
    return [[row[j] for j in used] for row in now], [[row[j] for j in used] for row in after], used
