"""Wrong input raises a sentence that says what is wrong and where; steps that are too large end as "diverged"."""

import re

import numpy as np
import pytest
import scipy.sparse as sparse

import naive
import valuefit as vf
from helpers.problems import PROBLEM, problem_of


def log_of(n=4, **changes):
    """A valid log of one terminated episode, with some columns changed."""
    columns = {
        "observation": np.arange(2.0 * n).reshape(n, 2) + 1,
        "reward": np.ones(n),
        "terminated": np.arange(n) == n - 1,
        **changes,
    }
    return vf.Transitions.from_arrays(**columns)


def rows_of(**changes):
    """A valid problem from rows, with some arguments changed."""
    arguments = {
        "Phi": np.arange(10.0).reshape(5, 2) + 1,
        "now": [0, 1, 2, 3],
        "next": [1, 2, 3, -1],
        "reward": np.ones(4),
        "discount": 0.9,
        **changes,
    }
    return vf.Problem.from_rows(**arguments)


def with_at(values, where, value):
    changed = np.array(values, dtype=float)
    changed[where] = value
    return changed


RIDGED = problem_of(naive.random_log(np.random.default_rng(0), n=60, d=4, ridge=0.1))
NOT_FINITE = [np.nan, np.inf, -np.inf]
not_finite = pytest.mark.parametrize("value", NOT_FINITE)


# ---- the log -------------------------------------------------------------------------------------


@not_finite
@pytest.mark.parametrize("name", ["observation", "next_observation"])
def test_an_observation_that_is_not_finite_is_refused_with_its_row(name, value):
    bad = with_at(np.ones((4, 2)), (2, 1), value)
    message = f"^{name} is NaN or infinite at row 2"
    if name == "observation" and np.isnan(value):
        message = r"^The observations have 2 columns, 1 with gaps: column 1 25%; the first is at row 2\."
    with pytest.raises(ValueError, match=message):
        log_of(**{name: bad})


def test_a_nan_late_in_a_long_log_is_found():
    with pytest.raises(ValueError, match="the first is at row 70001"):
        log_of(n=100_000, observation=with_at(np.ones(100_000), 70_001, np.nan))


@not_finite
@pytest.mark.parametrize("name", ["reward", "ratio"])
def test_a_column_that_is_not_finite_is_refused_with_its_step(name, value):
    with pytest.raises(ValueError, match=f"^{name} is {value} at step 3"):
        log_of(**{name: with_at(np.ones(4), 3, value)})
    with pytest.raises(ValueError, match=f"^{name} is {value} at step 3"):
        rows_of(**{name: with_at(np.ones(4), 3, value)})


@pytest.mark.parametrize(
    "name", ["reward", "terminated", "truncated", "episode", "ratio", "behaviour_prob", "target_prob"]
)
def test_columns_of_other_lengths_are_refused(name):
    given = {"behaviour_prob": np.ones(4), "target_prob": np.ones(4)} if "prob" in name else {}
    for length in (3, 5):
        with pytest.raises(ValueError, match=f"^{name} has {length} entries but the log has 4 steps"):
            log_of(**{**given, name: np.ones(length)})


def test_an_action_column_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"action must be numbers or text, one entry per step; the log has 4 steps"):
        log_of(action=np.zeros(3))


@pytest.mark.parametrize("shape", [(3, 2), (4, 3), (4,)])
def test_a_next_observation_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"next_observation has shape .* but observation has \(4, 2\)"):
        log_of(next_observation=np.ones(shape))


def test_negative_ratios_are_refused_with_their_step():
    sentence = r"ratio is -0\.5 at step 1\. Importance ratios cannot be negative"
    ratio = [1.0, -0.5, 1.0, 1.0]
    for make in (log_of, rows_of):
        with pytest.raises(ValueError, match=sentence):
            make(ratio=ratio)
    with pytest.raises(ValueError, match=sentence):
        log_of(behaviour_prob=np.ones(4), target_prob=ratio)


@pytest.mark.parametrize("value", [0.0, -1.2])
def test_a_behaviour_probability_that_is_not_positive_is_refused(value):
    with pytest.raises(ValueError, match=rf"behaviour_prob is {value} at step 2.*log-probabilities"):
        log_of(behaviour_prob=[0.5, 0.5, value, 0.5], target_prob=np.full(4, 0.5))


def test_incomplete_or_double_ratios_are_refused():
    with pytest.raises(ValueError, match="target_prob needs behaviour_prob"):
        log_of(target_prob=np.ones(4))
    with pytest.raises(ValueError, match="either ratio or the two probabilities, not both"):
        log_of(ratio=np.ones(4), behaviour_prob=np.ones(4), target_prob=np.ones(4))


def test_an_empty_log_is_refused():
    with pytest.raises(ValueError, match="log is empty: give at least one step"):
        vf.Transitions.from_arrays(np.zeros((0, 2)), [])
    with pytest.raises(ValueError, match="log is empty: give at least one step"):
        vf.Problem.from_rows(np.ones((3, 2)), [], [], [], [])


@pytest.mark.parametrize("bad", [np.array([1, "b", 2, 3], object), np.array(list("abcd")), np.full(4, 1j)])
def test_arrays_of_objects_text_or_complex_numbers_are_refused(bad):
    for name in ("observation", "reward", "ratio", "episode", "terminated"):
        with pytest.raises(ValueError, match=f"^{name} has dtype .*, which is not numeric"):
            log_of(**{name: bad})
    for name in ("now", "next", "reward", "discount", "ratio", "episode"):
        with pytest.raises(ValueError, match=f"^{name} has dtype .*, which is not numeric"):
            rows_of(**{name: bad})
    with pytest.raises(ValueError, match=r"^features have dtype .*, which is not numeric"):
        rows_of(Phi=bad[:, None])


def test_an_action_of_objects_is_refused():
    with pytest.raises(ValueError, match="action is an object of type int at row 0"):
        log_of(action=np.array([1, "b", 2, 3], object))


def test_a_single_action_is_refused():
    with pytest.raises(ValueError, match="action must be numbers or text, one entry per step"):
        log_of(action=3)


def test_flags_other_than_0_and_1_are_refused():
    with pytest.raises(ValueError, match="terminated must hold only 0 and 1"):
        log_of(terminated=[0, 0, 0, 2])


def test_an_episode_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match=r"The steps of episode 7 are not contiguous.*Sort the steps by episode"):
        log_of(episode=[7, 3, 7, 7], terminated=[1, 1, 0, 1])
    with pytest.raises(ValueError, match="The steps of episode 7 are not contiguous"):
        rows_of(episode=[7, 3, 7, 7])


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_an_end_in_the_middle_of_an_episode_is_refused(name):
    with pytest.raises(
        ValueError, match="Step 1 is marked as terminated or truncated, but episode 5 continues after it"
    ):
        log_of(episode=[5] * 4, **{name: [0, 1, 0, 0]}, next_observation=np.ones((4, 2)))


def test_an_open_end_without_the_observation_after_it_is_refused():
    with pytest.raises(ValueError, match=r"Episode 0 ends at step 3 without terminating.*Give next_observation"):
        log_of(terminated=None)
    with pytest.raises(ValueError, match=r"Episode 4 ends at step 1 without terminating"):
        log_of(episode=[4, 4, 6, 6], truncated=[0, 1, 0, 0])


@pytest.mark.parametrize("name", ["now", "next", "episode"])
def test_an_index_that_is_not_a_whole_number_is_refused(name):
    index = {"now": [0, 1, 2, 3], "next": [1, 2, 3, -1], "episode": [0, 0, 0, 0]}[name]
    with pytest.raises(ValueError, match=rf"{name}.*whole|{name}.*integer"):
        rows_of(**{name: np.add(index, [0, 0.5, 0, 0])})


# ---- the problem ---------------------------------------------------------------------------------


@not_finite
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, np.float32])
def test_features_that_are_not_finite_are_refused_with_their_row(make, value):
    bad = make(with_at(np.ones((5, 2)), (3, 0), value))
    with pytest.raises(ValueError, match=r"^features are NaN or infinite in row 3"):
        rows_of(Phi=bad)
    with pytest.raises(ValueError, match=r"^dual_rows are NaN or infinite in row 3"):
        rows_of(dual_rows=bad)
    with pytest.raises(ValueError, match=r"^features are NaN or infinite in row 3"):
        vf.Problem(log_of(), lambda observations: bad[: len(observations)])


@pytest.mark.parametrize("discount", [-0.1, 1.1, np.nan, np.inf])
def test_a_discount_outside_0_and_1_is_refused(discount):
    with pytest.raises(ValueError, match=r"discount is .*between 0 and 1"):
        vf.Problem(log_of(), discount=discount)
    if np.isfinite(discount):
        with pytest.raises(ValueError, match=f"discount is {discount} at step 1; it must lie between 0 and 1"):
            rows_of(discount=[0.9, discount, 0.9, 0.9])


def test_discount_1_is_refused_where_no_episode_terminates():
    stream = log_of(terminated=None, next_observation=np.ones((4, 2)))
    with pytest.raises(ValueError, match="discount is 1 but no episode of the log terminates"):
        vf.Problem(stream, discount=1)
    with pytest.raises(ValueError, match=r"discount is 1 but no episode.*next = -1"):
        rows_of(discount=1.0, next=[1, 2, 3, 4])


def test_discount_1_is_accepted_where_an_episode_terminates():
    assert vf.solve(vf.Problem(log_of(), discount=1), "lstd").status == "converged"
    assert vf.solve(rows_of(discount=1.0), "lstd").status == "converged"


@pytest.mark.parametrize("trace", [-0.1, 1.1, np.nan])
def test_a_trace_outside_0_and_1_is_refused(trace):
    for make in (lambda: vf.Problem(log_of(), trace=trace), lambda: rows_of(trace=trace)):
        with pytest.raises(ValueError, match=f"trace is {trace}; it must lie between 0 and 1"):
            make()


@pytest.mark.parametrize("ridge", [-1e-9, np.nan, np.inf])
def test_a_ridge_that_is_negative_or_not_finite_is_refused(ridge):
    for make in (lambda: vf.Problem(log_of(), ridge=ridge), lambda: rows_of(ridge=ridge)):
        with pytest.raises(ValueError, match=f"ridge is {ridge}; it must be a finite number, 0 or more"):
            make()


def test_an_unknown_metric_is_refused_with_the_known_ones():
    for make in (lambda: vf.Problem(log_of(), metric="D"), lambda: rows_of(metric="D")):
        with pytest.raises(ValueError, match=r"metric is 'D'; it must be \"C\" .* or \"identity\""):
            make()


@pytest.mark.parametrize(
    ("name", "index", "where"),
    [("now", [0, 1, 5, 3], 2), ("now", [0, -1, 2, 3], 1), ("next", [1, 2, 3, 5], 3), ("next", [-2, 2, 3, -1], 0)],
)
def test_an_index_out_of_range_is_refused_with_its_step(name, index, where):
    lowest = {"now": 0, "next": -1}[name]
    sentence = rf"{name}\[{where}\] is {index[where]}, but there are 5 rows: indices run from {lowest} to 4"
    with pytest.raises(ValueError, match=sentence):
        rows_of(**{name: index})


@pytest.mark.parametrize("name", ["next", "reward", "discount", "ratio", "episode"])
def test_rows_with_columns_of_other_lengths_are_refused(name):
    with pytest.raises(ValueError, match=f"^{name} has 3 entries but the log has 4 steps"):
        rows_of(**{name: np.zeros(3)})


@pytest.mark.parametrize("shape", [(3, 2), (5, 2), (4,), (4, 2, 2)])
def test_features_without_one_row_for_each_observation_are_refused(shape):
    sentence = r"returned an array of shape .* for 4 observations.*one row for each observation"
    with pytest.raises(ValueError, match=f"^features {sentence}"):
        vf.Problem(log_of(), lambda observations: np.ones(shape))
    with pytest.raises(ValueError, match=f"^dual_features {sentence}"):
        vf.Problem(log_of(), dual_features=lambda observations: np.ones(shape))


@pytest.mark.parametrize("shape", [(5,), (5, 0), (5, 2, 2)])
def test_rows_that_are_not_a_matrix_are_refused(shape):
    with pytest.raises(ValueError, match="features must be a matrix, one row per observation"):
        rows_of(Phi=np.ones(shape))


def test_dual_rows_that_do_not_match_the_features_are_refused():
    with pytest.raises(ValueError, match="dual features have 4 rows but the features have 5"):
        rows_of(dual_rows=np.ones((4, 3)))
    with pytest.raises(ValueError, match="1 dual features for 2 features; at least as many are needed"):
        rows_of(dual_rows=np.ones((5, 1)))


# ---- solver settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sagaa", "saga"), ("recursive_lstd", "recursive-lstd"), ("lsdt", "lstd"), ("gtd", "gtd2")],
)
def test_an_unknown_solver_is_refused_with_the_nearest_name(name, meant):
    with pytest.raises(ValueError, match=f"There is no solver '{name}'.*Did you mean '{meant}'"):
        vf.solve(PROBLEM, name)


def test_an_unknown_solver_without_a_similar_name_is_refused_with_the_list():
    with pytest.raises(ValueError, match=f"no solver 'xxxxx'.*The solvers are {', '.join(vf.solvers.names())}"):
        vf.solve(PROBLEM, "xxxxx")


SOLVERS = vf.solvers.registry()


def kinds_with(setting):
    return [kind for kind in SOLVERS.values() if setting in kind.__dataclass_fields__]


@pytest.mark.parametrize("value", [0, 0.0, -0.1, np.nan, np.inf])
@pytest.mark.parametrize(("kind", "setting"), [(k, s) for s in ("step", "step_theta", "step_w") for k in kinds_with(s)])
def test_a_step_size_that_is_not_positive_is_refused(kind, setting, value):
    with pytest.raises(ValueError, match=f"{setting} is {value}; a step size must be a positive number"):
        kind(**{setting: value})


@pytest.mark.parametrize("value", [0, -3])
@pytest.mark.parametrize("kind", kinds_with("inner"))
def test_fewer_than_one_inner_step_is_refused(kind, value):
    with pytest.raises(ValueError, match=f"inner is {value}; it must be at least 1"):
        kind(inner=value)


@pytest.mark.parametrize("value", [0, -1.0, np.nan])
@pytest.mark.parametrize("kind", kinds_with("decay"))
def test_a_decay_that_is_not_positive_is_refused(kind, value):
    with pytest.raises(ValueError, match=f"decay is {value}; it is a number of passes, more than 0"):
        kind(decay=value)


def test_other_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match='steps is \'fast\'; it must be "auto" or "theorem"'):
        vf.solvers.SAGA(steps="fast")
    with pytest.raises(ValueError, match='rate is \'1/2\'; it must be "4/5" or "3/4"'):
        vf.solvers.SVRG(rate="1/2")
    with pytest.raises(ValueError, match="initial is 0; it must lie strictly between 0 and 1"):
        vf.solvers.RecursiveLSTD(initial=0)
    with pytest.raises(ValueError, match="dimensions is 0; it must be at least 1"):
        vf.solvers.ILSTD(dimensions=0)


@pytest.mark.parametrize("tol", [-1e-9, np.nan, np.inf])
def test_a_tolerance_that_is_negative_or_not_finite_is_refused(tol):
    with pytest.raises(ValueError, match=f"tol is {tol}; it must be a finite number, 0 or more"):
        vf.solve(PROBLEM, "saga", tol=tol)


@pytest.mark.parametrize("passes", [0, -1, np.nan])
def test_a_pass_budget_that_is_not_positive_is_refused(passes):
    with pytest.raises(ValueError, match=f"max_passes is {passes}; it must be more than 0"):
        vf.solve(PROBLEM, "saga", max_passes=passes)


@pytest.mark.parametrize(
    ("init", "name", "shape"),
    [
        (np.zeros(5), "theta", "(5,)"),
        (np.zeros((4, 1)), "theta", "(4, 1)"),
        (3.0, "theta", "()"),
        (np.array([0, 0, np.nan, 0]), "theta", "(4,)"),
        ((np.zeros(4), np.zeros(5)), "w", "(5,)"),
        ((np.zeros(4), np.full(4, np.inf)), "w", "(4,)"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(init, name, shape):
    with pytest.raises(ValueError, match=re.escape(f"init gives {name} of shape {shape}, but the problem has 4")):
        vf.solve(PROBLEM, "saga", init=init)


@pytest.mark.parametrize("count", [1, 3])
def test_a_start_that_is_not_a_pair_is_refused(count):
    with pytest.raises(ValueError, match="init"):
        vf.solve(PROBLEM, "saga", init=(np.zeros(4),) * count)


def test_a_reference_that_is_not_the_minimiser_is_refused():
    best = vf.solve(PROBLEM, "lstd").theta
    with pytest.raises(ValueError, match=r"reference is not the minimiser.*its gap is 1\.0e\+00.*'lstd'"):
        vf.solve(PROBLEM, "saga", reference=np.zeros(4))
    with pytest.raises(ValueError, match="reference is not the minimiser"):
        vf.solve(PROBLEM, "saga", reference=best + 0.1)
    with pytest.raises(ValueError, match=r"reference has shape \(3,\), but the problem has 4 weights"):
        vf.solve(PROBLEM, "saga", reference=best[:3])


def test_a_reference_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="reference"):
        vf.solve(PROBLEM, "saga", reference=np.full(4, np.nan))


@pytest.mark.parametrize("solver", ["flstd-sa", "ctd", "ilstd"])
def test_a_method_without_ridge_refuses_it_naming_the_reason_and_other_solvers(solver):
    with pytest.raises(ValueError, match=r"with ridge: its fixed point .* is not the minimiser") as refusal:
        vf.solve(RIDGED, solver)
    others = str(refusal.value).split("These can: ")[1].rstrip(".").split(", ")
    assert {"lstd", "pdbg", "svrg", "saga", "gtd2", "tdc"} <= set(others)
    assert {"flstd-sa", "ctd", "ilstd"}.isdisjoint(others)
    for other in others:
        vf.solve(RIDGED, other, max_passes=2)


def test_the_named_solvers_support_all_traits_of_the_problem():
    log = naive.random_log(np.random.default_rng(0), n=20, d=3, k=5, ridge=0.1)
    sentence = r"tdc cannot solve a problem with more dual features: .*These can:"
    with pytest.raises(ValueError, match=sentence) as refusal:
        vf.solve(problem_of(log), "tdc")
    others = str(refusal.value).split("These can: ")[1].rstrip(".").split(", ")
    assert others == ["auto", "lstd", "krylov", "pdbg", "svrg", "saga", "catalyst", "gtd2", "recursive-lstd"]


def test_a_solver_without_a_theorem_refuses_theorem_steps():
    with pytest.raises(ValueError, match=r"gtd2 has no theorem with step sizes.*steps=\"auto\""):
        vf.solve(PROBLEM, vf.solvers.GTD2(steps="theorem"))


# ---- steps that diverge --------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e3, 1e12, 1e200])
@pytest.mark.parametrize("trace", [0.0, 0.8])
@pytest.mark.parametrize("name", ["pdbg", "svrg", "saga", "gtd2", "tdc", "flstd-sa", "ctd", "ilstd"])
def test_steps_far_too_large_end_as_diverged_with_finite_weights(name, trace, factor):
    problem = problem_of(naive.random_log(np.random.default_rng(1), n=60, d=4, ratio=True, trace=trace))
    kind = SOLVERS[name]
    if "step" in kind.__dataclass_fields__:
        solver = kind(step=factor * kind().choose_step(problem)[0])
    else:
        step_theta, step_w = kind().choose_steps(problem)
        solver = kind(step_theta=factor * step_theta, step_w=factor * step_w)
    result = vf.solve(problem, solver, max_passes=200)
    assert result.status == "diverged"
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert result.passes < 200
    assert re.search(f"{name} diverged at steps .*smaller steps", result.message)
    assert np.isfinite(result.history["residual"]).all()


@pytest.mark.parametrize("solver", vf.solvers.names())
def test_a_huge_starting_point_gives_finite_weights(solver):
    result = vf.solve(PROBLEM, solver, init=(np.full(4, 1e200), np.full(4, -1e200)), max_passes=10)
    assert result.status in ("converged", "budget", "diverged", "singular")
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()


@pytest.mark.parametrize("solver", ["gtd2", "tdc", "flstd-sa", "ilstd"])
def test_noise_around_the_minimiser_is_not_divergence(solver):
    best = vf.solve(PROBLEM, "lstd")
    result = vf.solve(PROBLEM, solver, init=best, reference=best, tol=0, max_passes=30)
    assert result.status == "budget"
    assert result.history["gap"][-1] < 0.5
