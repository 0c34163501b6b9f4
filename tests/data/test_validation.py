"""Scalars and columns: what is accepted unchanged, and one sentence for everything else."""

from dataclasses import fields
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import valuefit as vf
from helpers.problems import PROBLEM
from valuefit.data.validation import all_finite, array_of, last_steps, number, numbers, step_numbers, whole_number
from valuefit.messages import shown

LOG = vf.Transitions.from_arrays(np.arange(8.0).reshape(4, 2), np.ones(4), terminated=[0, 1, 0, 1])
ROWS = {"Phi": np.eye(4), "now": [0, 1, 2], "next": [1, 2, 3], "reward": np.ones(3), "discount": 0.9}
NOT_A_NUMBER = {
    "text": "0.9", "None": None, "list": [0.5], "tuple": (1,), "array": np.ones(2), "dict": {}, "True": True,
    "NumPy's True": np.True_, "complex": 1j, "NaN": np.nan, "400 digits": 10**400, "5000 digits": 10**5000,
    "pandas.NA": pd.NA, "NaT": np.datetime64("NaT"), "object": object(),
}  # fmt: skip
SETTINGS = [
    (kind, field.name)
    for kind in vf.solvers.registry().values()
    for field in fields(kind)
    if isinstance(field.default, int | float) or (field.default is None and field.name != "solver")
]
CALLS = {
    **{f"Problem({name})": lambda value, name=name: vf.Problem(LOG, **{name: value})
       for name in ("discount", "trace", "ridge")},
    **{f"from_rows({name})": lambda value, name=name: vf.Problem.from_rows(**ROWS | {name: value})
       for name in ("trace", "ridge")},
    **{f"solve({name})": lambda value, name=name: vf.solve(PROBLEM, "lstd", **{name: value})
       for name in ("tol", "max_passes", "max_seconds", "seed")},
    **{f"evaluate({name})": lambda value, name=name: vf.evaluate(LOG, **{name: value})
       for name in ("discount", "trace", "ridge", "tol", "max_passes", "seed")},
    "split(share)": lambda value: vf.split(LOG, value),
    "split(seed)": lambda value: vf.split(LOG, seed=value),
    **{f"{kind.name}({name})": lambda value, kind=kind, name=name: kind(**{name: value}) for kind, name in SETTINGS},
}  # fmt: skip
OPTIONAL = {"max_seconds", *(name for kind, name in SETTINGS if getattr(kind, name) is None)}


@pytest.mark.parametrize("kind", NOT_A_NUMBER)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_a_number_is_refused_in_one_sentence(call, kind):
    name = call.split("(")[1].rstrip(")")
    if (kind == "None" and name in OPTIONAL) or (
        kind.endswith("True") and name in ("averaging", "precompute", "fastest")
    ):
        return
    with pytest.raises(ValueError, match=rf"^{name} is .*\.$") as refusal:
        CALLS[call](NOT_A_NUMBER[kind])
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int8(1), np.array(1.0), Fraction(1), np.float16(1)])
def test_every_kind_of_number_is_accepted(value):
    accepted = number("x", value, "it must be 1", lambda x: x == 1)
    assert (accepted, type(accepted)) == (1.0, float)
    whole = whole_number("x", value, "it must be 1", low=1)
    assert (whole, type(whole)) == (1, int)


def test_a_long_value_is_shortened_to_one_line():
    assert shown(np.float64(0.5)) == "0.5"
    assert len(shown(10**400)) < 70
    assert shown(10**5000) == "a whole number of about 4983 digits"
    assert shown([10**5000]) == "a list that is too long to print"
    assert "\n" not in shown(np.ones((20, 20)))


# ---- missing values -------------------------------------------------------------------------------


def columns(**changes):
    given = {"observation": np.arange(8.0).reshape(4, 2), "reward": np.ones(4), "terminated": [0, 0, 0, 1]}
    return given | changes


MASK = [False, False, True, False]
MISSING = {
    "masked": np.ma.array([1.0, 1.0, 1e6, 1.0], mask=MASK),
    "masked constant": [1.0, 1.0, np.ma.masked, 1.0],
    "pandas Float64": pd.Series([1.0, 1.0, None, 1.0], dtype="Float64"),
    "pandas Int64": pd.Series([1, 1, None, 1], dtype="Int64"),
    "pandas boolean": pd.Series([True, True, None, True], dtype="boolean"),
    "None": [1, 1, None, 1],
}


@pytest.mark.parametrize("kind", MISSING)
@pytest.mark.parametrize(
    "name", ["reward", "terminated", "truncated", "episode", "ratio", "behaviour_prob", "action", "observation"]
)
def test_a_missing_value_of_a_log_is_refused_with_its_step(name, kind):
    words = rf"{name} is (missing|nan|NaN or infinite) (at step|in row|at row) 2"
    if name == "observation":
        words = "The observations have 1 column, 1 with gaps: column 0 25%; the first is at row 2"
    with pytest.raises(ValueError, match=f"^{words}"):
        vf.Transitions.from_arrays(**columns(**{name: MISSING[kind]}))


@pytest.mark.parametrize("name", ["now", "next", "reward", "discount", "ratio", "episode"])
def test_a_missing_value_of_rows_is_refused_with_its_step(name):
    given = {"Phi": np.eye(4), "now": np.arange(4), "next": -np.ones(4), "reward": np.ones(4), "discount": 0.9}
    with pytest.raises(ValueError, match=f"^{name} is missing at step 2"):
        vf.Problem.from_rows(**given | {name: np.ma.array(np.zeros(4), mask=MASK)})


def test_masked_features_are_refused_with_their_row():
    rows = np.ma.array(np.ones((4, 2)), mask=[[0, 0], [0, 0], [0, 1], [0, 0]])
    for features in (rows, list(rows), pd.DataFrame({"a": pd.array([1, 2, None, 4], "Int64"), "b": np.ones(4)})):
        with pytest.raises(ValueError, match=r"^features (is missing|are NaN or infinite) in row 2"):
            vf.Problem.from_rows(features, [0, 1, 2, 3], [-1] * 4, np.ones(4), 0.9)
    log = vf.Transitions.from_arrays(**columns())
    with pytest.raises(ValueError, match=r"^features is missing in row 2"):
        vf.Problem(log, lambda observations: rows)
    with pytest.raises(ValueError, match=r"^features is missing in row 2"):
        vf.evaluate(log, features=lambda observations: rows[: len(observations)])


def test_masked_probabilities_and_starts_are_refused():
    log = vf.Transitions.from_arrays(**columns(action=[0, 1, 0, 1], behaviour_prob=np.full(4, 0.5)))
    with pytest.raises(ValueError, match=r"^the policy is missing in row 2"):
        vf.evaluate(log, policy=np.ma.array(np.full(4, 0.5), mask=MASK))
    with pytest.raises(ValueError, match=r"^The policy .* is missing in row 2"):
        vf.evaluate(log, policy=lambda x: np.ma.array(np.full((4, 2), 0.5), mask=np.column_stack([MASK, MASK])))
    with pytest.raises(ValueError, match=r"^starts is missing in row 0"):
        vf.evaluate(log, starts=np.ma.array([[1.0, 2.0]], mask=[[0, 1]]))


def test_a_next_observation_may_be_masked_where_the_episode_terminated():
    after = np.ma.array(np.arange(2.0, 10.0).reshape(4, 2), mask=np.column_stack([[0, 0, 0, 1]] * 2))
    log = vf.Transitions.from_arrays(**columns(next_observation=after))
    assert log.next.tolist() == [1, 2, 3, -1]
    with pytest.raises(ValueError, match=r"^next_observation is missing in row 3"):
        vf.Transitions.from_arrays(**columns(next_observation=after, terminated=None, truncated=[0, 0, 0, 1]))


def test_a_masked_array_without_missing_values_is_read():
    assert array_of("x", np.ma.array([1.0, 2.0])).tolist() == [1.0, 2.0]


# ---- casts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2**63, np.uint64(2**64 - 1), 1e300, 2.0**60, 0.5, np.longdouble(2) ** 70])
def test_a_whole_number_that_a_cast_would_change_is_refused(value):
    with pytest.raises(ValueError, match=r"^episode is .* at step 1; .*whole number"):
        numbers("episode", np.array([0, value]), dtype=np.int64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint64, bool])
def test_whole_numbers_of_every_type_are_read(dtype):
    assert numbers("episode", np.array([0, 1], dtype), dtype=np.int64).tolist() == [0, 1]


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"^observation cannot be read as an array .*rows of equal length"):
        vf.Transitions.from_arrays([[1.0], [1.0, 2.0]], np.ones(2), terminated=[0, 1])


@given(st.lists(st.booleans(), max_size=20))
def test_runs_of_steps_equal_those_of_a_loop(flags):
    begins = np.array([True, *flags])
    numbers, number = [], 0
    for step, starts in enumerate(begins):
        number = 0 if starts else number + 1
        numbers.append(number)
        assert last_steps(begins)[step] == (step + 1 == len(begins) or begins[step + 1])
    assert step_numbers(begins).tolist() == numbers


def test_a_log_without_steps_has_no_runs():
    none = np.zeros(0, bool)
    assert len(last_steps(none)) == len(step_numbers(none)) == 0


# ---- finite numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8", np.longdouble, np.int64])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_numbers_are_finite_also_where_their_squares_are_not(dtype, order):
    top = np.iinfo(dtype).max if np.dtype(dtype).kind == "i" else np.finfo(dtype).max
    values = np.full((70, 6), top, dtype)
    values = values[:, ::2] if order == "strided" else np.asarray(values, order=order)
    assert all_finite(values)
    assert all_finite(np.zeros_like(values))
    assert all_finite(values[:0])
    if np.dtype(dtype).kind == "i":
        return
    for wrong in (np.nan, np.inf, -np.inf):
        for place in ((0, 0), (69, 2), (33, 1)):
            one = values.copy()
            one[place] = wrong
            assert not all_finite(one)
            one[(place[0] + 1) % 70, 0] = -wrong  # their sum is NaN
            assert not all_finite(one)
