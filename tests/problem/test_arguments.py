"""The range of ratios, rewards and features: products in float64 stay exact, or the step is named."""

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from valuefit.problem.arguments import MAX_RATIO

STEPS = np.arange(1100)


def walk(size=1.0, reward=1.0, n=1100, **given):
    rng = np.random.default_rng(0)
    rows = size * np.column_stack([np.ones(n + 1), rng.standard_normal(n + 1)])
    return vf.Problem.from_rows(
        rows, STEPS[:n], STEPS[:n] + 1, reward * (1 + rng.random(n)), **{"discount": 1 - 1e-9} | given
    )


def test_products_of_ratios_along_a_trace_are_refused_where_they_leave_the_range():
    sentence = (
        r"^The products of ratios along the trace exceed 1e\+50 at step 16\d: products leave the range of float64"
    )
    with pytest.raises(ValueError, match=sentence):
        walk(ratio=np.full(1100, 2.0), trace=1.0)
    walk(ratio=np.full(1100, 2.0), trace=0.4)


@pytest.mark.parametrize("ratio", [1e51, 1e154, 1e300])
def test_a_ratio_out_of_range_is_refused_with_its_step(ratio):
    with pytest.raises(ValueError, match=r"^ratio is \S+ at step 7: products leave the range of float64"):
        walk(ratio=np.where(STEPS == 7, ratio, 1.0))


def test_ratios_that_are_all_tiny_are_refused_but_zero_is_not():
    with pytest.raises(ValueError, match=r"^The largest ratio is 1e-60, so products leave the range"):
        walk(ratio=np.full(1100, 1e-60))
    assert vf.solve(walk(ratio=np.zeros(1100)), "lstd").status == "converged"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("solver", ["auto", "lstd", "krylov", "recursive-lstd"])
@pytest.mark.parametrize("ratio", [1.0, MAX_RATIO, 1 / MAX_RATIO])
@pytest.mark.parametrize("reward", [1e-31, 1e31])
@pytest.mark.parametrize("size", [1e-31, 1e31])
def test_every_magnitude_inside_the_range_is_solved_or_not_called_converged(size, reward, ratio, solver):
    """The value at a row does not depend on the unit of the features, and is proportional to the rewards."""
    problem = walk(size, reward, n=30, discount=0.9, ratio=np.full(30, ratio))
    result = vf.solve(problem, solver, max_passes=50)
    plain = walk(n=30, discount=0.9)
    expected = plain.phi.dot(vf.solve(plain, "lstd").theta)
    if solver != "recursive-lstd":
        assert result.status == "converged"
    if result.status == "converged":
        np.testing.assert_allclose(problem.phi.dot(result.theta) / reward, expected, rtol=1e-3)


@pytest.mark.parametrize("size", [1e-55, 1e55])
def test_magnitudes_whose_products_leave_the_range_are_refused(size):
    with pytest.raises(
        ValueError, match=r"^features reach .*: their products leave the range of float64. Rescale them"
    ):
        walk(size)
    with pytest.raises(ValueError, match=r"^Rewards reach .*: their products leave the range of float64. Rescale them"):
        walk(reward=size)


@pytest.mark.filterwarnings("error")
def test_the_warnings_about_ratios_stay_at_large_ratios():
    rng = np.random.default_rng(0)
    ratio = np.where(np.arange(300) == 5, 1e49, 1.0)
    log = vf.Transitions.from_arrays(
        rng.standard_normal((300, 2)), rng.standard_normal(300), terminated=np.arange(300) % 10 == 9, ratio=ratio
    )
    text = " ".join(vf.evaluate(log, features="identity", discount=0.9).warnings)
    assert "effective sample of 1 of 300 steps" in text
    assert "heavy tail" in text


@pytest.mark.parametrize("trace", [0.0, 0.5])
@pytest.mark.parametrize("sparse_duals", [True, False])
def test_dual_rows_may_be_stored_in_another_way_than_the_features(sparse_duals, trace):
    rng = np.random.default_rng(0)
    Phi, Psi = rng.standard_normal((30, 2)), rng.standard_normal((30, 3))
    now, after, reward = np.arange(29), np.arange(1, 30), rng.standard_normal(29)
    options = {"reward": reward, "discount": 0.9, "trace": trace, "now": now, "next": after}
    expected = vf.Problem.from_rows(Phi, dual_rows=Psi, **options)
    stored = (Phi, sparse.csr_array(Psi)) if sparse_duals else (sparse.csr_array(Phi), Psi)
    problem = vf.Problem.from_rows(stored[0], dual_rows=stored[1], **options)
    for found, wanted in zip(problem.moments(), expected.moments(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    for solver in ("lstd", "krylov"):
        found, wanted = (vf.solve(one, solver, max_passes=20).theta for one in (problem, expected))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_tile_coded_rows_are_ones_in_the_columns_named():
    index = np.array([[0, 2], [2, 2], [-1, 1]])
    problem = vf.Problem.from_rows(index, [0, 1], [1, 2], [1.0, 2.0], 0.5, columns=3)
    np.testing.assert_array_equal(problem.phi.matrix.toarray(), [[1, 0, 1], [0, 0, 2], [0, 0, 0]])
    assert list(problem.dead) == [1]  # no step starts from the row that has it


@pytest.mark.parametrize(
    ("index", "columns", "message"),
    [
        (
            [[0, 3]],
            3,
            "name column 3 in row 0, but there are 3 columns: numbers run from 0 to 2, and -1",
        ),
        ([[0], [-2]], 3, "name column -2 in row 1"),
        ([[0.0]], 3, "a matrix of integers; they are float64 of shape"),
        ([[0]], 0, "columns is 0; it must be 1 or more"),
    ],
)
def test_numbers_of_columns_that_do_not_exist_are_refused(index, columns, message):
    with pytest.raises(ValueError, match=message):
        vf.Problem.from_rows(index, [0], [0], [1.0], 0.5, columns=columns)
