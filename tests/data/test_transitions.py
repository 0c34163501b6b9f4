"""`Transitions`: observations stored once, episodes of any length, and slices that restart the trace at each gap."""

from dataclasses import FrozenInstanceError, replace
from typing import NamedTuple

import numpy as np
import pytest

import naive
import valuefit as vf


class Recorded(NamedTuple):
    """The columns of a log, one entry per step, with the next observation of every step."""

    observation: np.ndarray
    next_observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray
    ratio: np.ndarray

    def log(self, **changes):
        return vf.Transitions.from_arrays(**{**self._asdict(), **changes})


def record(lengths, terminated, width=2, seed=0):
    """Episodes of these lengths with random observations; the observation after a terminated step is padding."""
    rng = np.random.default_rng(seed)
    steps = []
    for episode, (length, ends) in enumerate(zip(lengths, terminated, strict=True)):
        path = rng.normal(size=(length + 1, width))
        for t in range(length):
            last = t == length - 1
            after = np.full(width, 77.0) if last and ends else path[t + 1]
            steps.append((path[t], after, rng.normal(), last and ends, last and not ends, episode))
    columns = [np.array(column) for column in zip(*steps, strict=True)]
    return Recorded(*columns, ratio=rng.lognormal(size=len(steps)))


def features(observations):
    return np.column_stack([np.ones(len(observations)), observations, observations[:, 0] ** 2])


def naive_log(recorded, pieces=None, discount=0.9, trace=0.0):
    """The log of tests/naive.py with two rows per step, none shared; traces restart where `pieces` changes."""
    n = len(recorded.reward)
    Phi = features(np.vstack([recorded.observation, recorded.next_observation]))
    return naive.Log(
        Phi=Phi,
        Psi=Phi,
        now=np.arange(n),
        next=np.where(recorded.terminated, -1, n + np.arange(n)),
        reward=recorded.reward,
        discount=np.where(recorded.terminated, 0.0, discount),
        ratio=recorded.ratio,
        episode=recorded.episode if pieces is None else np.asarray(pieces),
        trace=trace,
    )


def assert_same_moments(problem, expected):
    for fast, slow in zip(problem.moments(), naive.moments(expected), strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-12, atol=1e-13)


def assert_same_steps(log, other):
    """Equal steps, whichever rows the observations are stored in."""
    for name in ("reward", "terminated", "truncated", "episode", "ratio", "begins"):
        np.testing.assert_array_equal(getattr(log, name), getattr(other, name))
    np.testing.assert_array_equal(log.observations[log.now], other.observations[other.now])
    continues = log.next >= 0
    np.testing.assert_array_equal(continues, other.next >= 0)
    np.testing.assert_array_equal(log.observations[log.next[continues]], other.observations[other.next[continues]])


RAGGED = record([5, 1, 3, 7, 1], [True, False, False, True, True])

SHAPES = {
    "ragged": RAGGED,
    "all of one step, terminated": record([1] * 6, [True] * 6),
    "all of one step, truncated": record([1] * 6, [False] * 6),
    "one terminated transition": record([1], [True]),
    "one truncated transition": record([1], [False]),
    "one continuing stream": record([25], [False]),
}


# ---- storage -------------------------------------------------------------------------------------


def test_a_truncated_episode_of_T_steps_stores_T_plus_1_observations():
    log = record([5, 1, 3], [False, False, False]).log()
    assert len(log) == 9
    assert len(log.observations) == 6 + 2 + 4


def test_a_terminated_episode_stores_no_observation_after_its_end():
    log = record([5, 1, 3], [True, True, True]).log()
    assert len(log.observations) == 9
    assert not (log.observations == 77.0).any()
    np.testing.assert_array_equal(np.flatnonzero(log.next == -1), [4, 5, 8])


@pytest.mark.parametrize("recorded", SHAPES.values(), ids=SHAPES.keys())
def test_rows_hold_the_recorded_observations(recorded):
    log = recorded.log()
    np.testing.assert_array_equal(log.observations[log.now], recorded.observation)
    continues = ~recorded.terminated
    np.testing.assert_array_equal(log.next >= 0, continues)
    np.testing.assert_array_equal(log.observations[log.next[continues]], recorded.next_observation[continues])


def test_a_next_observation_equal_to_that_of_the_next_step_shares_its_row():
    log = record([4], [False]).log()
    np.testing.assert_array_equal(log.next[:3], log.now[1:])


@pytest.mark.parametrize("column", [0, 1])
def test_a_next_observation_that_differs_in_one_number_has_a_separate_row(column):
    recorded = record([4], [False])
    after = recorded.next_observation.copy()
    after[1, column] += 1e-9
    log = recorded.log(next_observation=after)
    assert len(log.observations) == 6
    assert log.next[1] != log.now[2]
    np.testing.assert_array_equal(log.observations[log.next[1]], after[1])
    np.testing.assert_array_equal(log.next[[0, 2]], log.now[[1, 3]])


def test_without_next_observation_that_of_the_following_step_is_used():
    recorded = record([4, 1, 2], [True, True, True])
    log = recorded.log(next_observation=None)
    assert_same_steps(log, recorded.log())
    assert len(log.observations) == 7


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_integer_states_have_one_row_per_state(dtype):
    states = np.random.default_rng(0).choice([3, 5, 70, 71], size=401).astype(dtype)
    log = vf.Transitions.from_arrays(states[:-1], np.zeros(400), next_observation=states[1:])
    np.testing.assert_array_equal(log.observations, [3, 5, 70, 71])
    np.testing.assert_array_equal(log.observations[log.now], states[:-1])
    np.testing.assert_array_equal(log.observations[log.next], states[1:])


def test_a_state_that_is_only_a_next_state_has_a_row():
    log = vf.Transitions.from_arrays([4, 4], [0.0, 0.0], next_observation=[4, 9], truncated=[0, 1])
    np.testing.assert_array_equal(log.observations, [4, 9])
    np.testing.assert_array_equal(log.next, [0, 1])


def test_integer_vectors_are_observations_and_not_states():
    log = vf.Transitions.from_arrays(np.ones((3, 2), int), np.zeros(3), terminated=[0, 0, 1])
    assert log.observations.shape == (3, 2)


# ---- episodes and the bootstrap ------------------------------------------------------------------


@pytest.mark.parametrize("trace", [0.0, 0.6])
@pytest.mark.parametrize("recorded", SHAPES.values(), ids=SHAPES.keys())
def test_moments_of_any_episode_structure_equal_the_naive_ones(recorded, trace):
    problem = vf.Problem(recorded.log(), features, discount=0.9, trace=trace)
    assert_same_moments(problem, naive_log(recorded, trace=trace))


@pytest.mark.parametrize(
    ("terminated", "truncated", "difference"),
    [(True, False, 1.0), (False, True, 1.0 - 0.9 * 5.0), (True, True, 1.0), (False, False, 1.0 - 0.9 * 5.0)],
)
def test_terminated_stops_the_bootstrap_and_truncated_does_not(terminated, truncated, difference):
    log = vf.Transitions.from_arrays(
        [[1.0]], [2.0], terminated=[terminated], truncated=[truncated], next_observation=[[5.0]]
    )
    A, b, C = vf.Problem(log, discount=0.9).moments()
    assert (A[0, 0], b[0], C[0, 0]) == pytest.approx((difference, 2.0, 1.0))


def test_without_episode_numbers_the_flags_delimit_episodes():
    recorded = RAGGED
    log = recorded.log(episode=None)
    assert_same_steps(log, recorded.log())
    np.testing.assert_array_equal(log.begins, np.diff(recorded.episode, prepend=-1) != 0)


def test_a_log_may_stop_in_the_middle_of_an_episode_when_the_last_observation_is_given():
    recorded = record([3, 4], [True, False])
    log = recorded.log(truncated=None, episode=None)
    np.testing.assert_array_equal(log.episode, recorded.episode)
    assert not log.truncated.any()
    assert_same_moments(vf.Problem(log, features, discount=0.9, trace=0.5), naive_log(recorded, trace=0.5))


def test_a_trace_does_not_continue_into_the_next_episode():
    recorded = record([3, 4], [False, False])
    joined = naive_log(recorded, pieces=np.zeros(7), trace=0.9)
    A, _, _ = vf.Problem(recorded.log(), features, discount=0.9, trace=0.9).moments()
    assert not np.allclose(A, naive.moments(joined)[0])  # or this test could not fail
    np.testing.assert_allclose(A, naive.moments(naive_log(recorded, trace=0.9))[0], rtol=1e-12)


def test_behaviour_probabilities_are_kept_without_a_target_policy():
    count = len(RAGGED.reward)
    log = RAGGED.log(behaviour_prob=np.linspace(0.1, 1, count), ratio=None)
    assert (log.ratio == 1).all()
    np.testing.assert_array_equal(log[2:6].behaviour_prob, np.linspace(0.1, 1, count)[2:6])


def test_slices_keep_the_notes_and_the_source():
    log = replace(RAGGED.log(), notes=("three steps left out",), source="log.csv")
    for piece in (log[2:6], log.select([0]), *vf.split(log)):
        assert (piece.notes, piece.source) == (("three steps left out",), "log.csv")


# ---- immutability --------------------------------------------------------------------------------


def test_the_arrays_and_fields_of_a_log_are_read_only():
    recorded = RAGGED
    count = len(recorded.reward)
    log = recorded.log(action=np.arange(count), behaviour_prob=np.full(count, 0.5), cluster=np.zeros(count))
    for piece in (log, log[2:6], log.select([0, 2])):
        for name, column in vars(piece).items():
            if name not in (
                "notes",
                "warnings",
                "source",
                "names",
                "state_names",
                "episode_names",
                "action_names",
                "filling",
                "continuity",
            ):
                with pytest.raises(ValueError, match="read-only"):
                    column[0] = 0
            with pytest.raises(FrozenInstanceError):
                setattr(piece, name, column)


def test_the_callers_arrays_stay_writeable_and_unchanged():
    given = {**RAGGED._asdict(), "action": np.arange(17)}
    before = {name: column.copy() for name, column in given.items()}
    log = vf.Transitions.from_arrays(**given)
    problem = vf.Problem(log, features, trace=0.5)
    vf.solve(problem, "saga", max_passes=3)
    for name, column in given.items():
        np.testing.assert_array_equal(column, before[name])
        column[0] = column[0]  # still allowed


# ---- slices --------------------------------------------------------------------------------------

CHOICES = {
    "slice": slice(3, 12),
    "slice with a step": slice(0, 17, 2),
    "slice from the end": slice(-6, None),
    "mask": np.arange(17) % 3 > 0,
    "indices": np.array([0, 1, 2, 9, 10, 4, 5, 16]),
    "list": [7, 8, 9],
    "backwards": slice(None, None, -1),
    "repeated": [6, 6, 7, 7],
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_a_slice_has_the_chosen_steps_in_the_chosen_order(choice):
    actions = np.arange(17) * 10
    piece = RAGGED.log(action=actions)[choice]
    np.testing.assert_array_equal(piece.observations[piece.now], RAGGED.observation[choice])
    for name in ("reward", "terminated", "truncated", "episode", "ratio"):
        np.testing.assert_array_equal(getattr(piece, name), getattr(RAGGED, name)[choice])
    np.testing.assert_array_equal(piece.action, actions[choice])
    assert len(piece) == len(piece.reward)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES.keys())
def test_a_trace_restarts_at_each_gap_of_a_slice(choice):
    chosen = np.arange(17)[choice]
    starts = np.concatenate([[True], (np.diff(chosen) != 1) | (np.diff(RAGGED.episode[chosen]) != 0)])
    selected = Recorded(*(column[chosen] for column in RAGGED))
    problem = vf.Problem(RAGGED.log()[choice], features, discount=0.9, trace=0.7)
    assert_same_moments(problem, naive_log(selected, pieces=np.cumsum(starts), trace=0.7))


def test_a_gap_inside_an_episode_restarts_the_trace_in_slices_of_slices_too():
    log = record([8], [False]).log()
    np.testing.assert_array_equal(log[[0, 1, 4, 5]].begins, [True, False, True, False])
    np.testing.assert_array_equal(log[[0, 1, 4, 5]][1:3].begins, [True, True])
    np.testing.assert_array_equal(log[::2][:].begins, [True] * 4)


@pytest.mark.parametrize("step", [0, 5, 16, -1])
def test_an_integer_index_selects_one_step(step):
    piece = RAGGED.log()[step]
    assert len(piece) == 1
    assert piece.reward[0] == RAGGED.reward[step]
    assert piece.begins[0]


def test_the_full_slice_equals_the_log():
    log = RAGGED.log()
    assert_same_steps(log[:], log)


def test_a_slice_shares_the_observations_of_its_log():
    log = RAGGED.log()
    assert np.shares_memory(log[3:5].observations, log.observations)


def test_an_empty_selection_is_refused():
    with pytest.raises(ValueError, match="selection is empty"):
        RAGGED.log()[5:5]
    with pytest.raises(ValueError, match="selection is empty"):
        RAGGED.log().select([])


# ---- by episode ----------------------------------------------------------------------------------


def test_episodes_are_in_the_order_of_the_log():
    log = RAGGED.log(episode=np.array([7, 3, 5, 0, 4])[RAGGED.episode])
    np.testing.assert_array_equal(log.episodes, [7, 3, 5, 0, 4])


def test_select_takes_whole_episodes_in_the_order_of_the_log():
    log = RAGGED.log()
    chosen = log.select([3, 0])
    np.testing.assert_array_equal(chosen.episode, [0] * 5 + [3] * 7)
    np.testing.assert_array_equal(chosen.reward, RAGGED.reward[np.isin(RAGGED.episode, [0, 3])])
    assert len(log.select(1)) == 1
    with pytest.raises(ValueError, match="no episode 9"):
        log.select([0, 9])


# ---- ratios and repr -----------------------------------------------------------------------------


def test_ratios_are_target_over_behaviour_of_the_logged_action():
    behaviour, target = np.array([0.5, 0.25, 1.0]), np.array([0.25, 0.5, 0.0])
    log = vf.Transitions.from_arrays(
        np.eye(3), np.ones(3), terminated=[0, 0, 1], behaviour_prob=behaviour, target_prob=target
    )
    np.testing.assert_allclose(log.ratio, [0.5, 2.0, 0.0], rtol=1e-15)
    assert vf.Problem(log).traits == {"ratio"}


def test_without_probabilities_a_log_is_on_policy():
    log = RAGGED.log(ratio=None)
    np.testing.assert_array_equal(log.ratio, np.ones(17))


@pytest.mark.parametrize("rounding", [2e-16, 1e-7])
def test_ratios_that_are_1_up_to_rounding_are_1(rounding):
    ratio = 1 + rounding * np.resize([-1, 0, 1], 17)
    for log in (
        RAGGED.log(ratio=ratio),
        RAGGED.log(ratio=None, target_prob=0.4 * ratio, behaviour_prob=np.full(17, 0.4)),
    ):
        assert (log.ratio == 1).all()
    assert (RAGGED.log(ratio=np.full(17, 1.00001)).ratio == 1.00001).all()


def test_probabilities_of_whole_numbers_are_at_most_1_and_densities_are_not():
    behaviour = np.where(np.arange(17) == 3, 1.9, 0.5)
    kept = RAGGED.log(ratio=None, behaviour_prob=behaviour, action=np.linspace(0, 1, 17)).behaviour_prob
    np.testing.assert_array_equal(kept, behaviour)
    actions = np.arange(17) % 2
    message = (
        "^behaviour_prob is 1.9 at step 3, but probabilities are at most 1. Divide percentages by 100; densities may"
    )
    with pytest.raises(ValueError, match=message):
        RAGGED.log(ratio=None, behaviour_prob=behaviour, action=actions)
    with pytest.raises(ValueError, match=r"^target_prob is 1\.9 at step 3, but"):
        RAGGED.log(ratio=None, behaviour_prob=np.full(17, 0.5), target_prob=behaviour, action=actions)
    percent = np.full(17, 40.0)  # what the message says to do
    assert (RAGGED.log(ratio=None, behaviour_prob=percent / 100, action=actions).behaviour_prob == 0.4).all()
    rounded = np.full(17, 1 + 1e-7)
    assert (RAGGED.log(ratio=None, behaviour_prob=rounded, action=actions).behaviour_prob == rounded).all()


def test_repr_gives_the_numbers_of_steps_and_episodes():
    assert repr(RAGGED.log()) == "Transitions(17 steps, 5 episodes, observations (2,), off-policy)"
    states = vf.Transitions.from_arrays([0, 1], [0.0, 0.0], terminated=[0, 1])
    assert repr(states) == "Transitions(2 steps, 1 episodes, observations (), on-policy)"


@pytest.mark.parametrize("steps", [slice(None), slice(3, 7), slice(20, 22), slice(None, None, -1)])
@pytest.mark.parametrize("consecutive", [False, True])
def test_used_observations_are_those_of_the_steps(steps, consecutive):
    rng = np.random.default_rng(0)
    log = vf.Transitions.from_arrays(
        rng.normal(size=(30, 2)),
        np.zeros(30),
        terminated=np.arange(30) % 5 == 4,
        next_observation=None if consecutive else rng.normal(size=(30, 2)),
    )[steps]
    used, now, next = log.used_observations()
    np.testing.assert_array_equal(used, np.unique(np.append(log.now, log.next[log.next >= 0])))
    np.testing.assert_array_equal(used[now], log.now)
    np.testing.assert_array_equal(np.where(next < 0, -1, used[next]), log.next)


@pytest.mark.parametrize("steps", [None, np.zeros((3, 3), int), slice(None, None, 0), 1.5])
def test_an_index_that_is_no_list_of_steps_is_refused(steps):
    with pytest.raises(ValueError, match=r"^These steps cannot be selected from a log of 17 steps"):
        RAGGED.log()[steps]
