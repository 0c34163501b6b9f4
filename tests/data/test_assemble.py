"""Logs from named columns: matching, order of rows, ends of episodes, notes on assumptions, and error messages."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import valuefit as vf
from helpers.log_files import assert_same_log, d4rl, expected, flat, minari_dataset, steps

COLUMNS = steps()
N = len(COLUMNS["reward"])
SHORT = {"obs": [[1.0], [2.0], [3.0], [4.0]], "reward": [1.0, 2.0, 3.0, 4.0], "terminated": [0, 1, 0, 1]}


def table(**changes):
    """A small valid table with some columns replaced, or removed where None."""
    return {name: value for name, value in {**SHORT, **changes}.items() if value is not None}


def refused(message, source=None, **settings):
    with pytest.raises(ValueError, match=message):
        vf.load(source if source is not None else SHORT, **settings)


# ---- names ---------------------------------------------------------------------------------------


def test_columns_maps_fields_to_columns_of_the_source():
    frame = pd.DataFrame(flat(COLUMNS)).rename(
        columns={"obs_0": "x", "obs_1": "v", "obs_2": "angle", "reward": "r", "episode": "trial", "terminated": "end"}
    )
    frame["note"] = "text that is not needed"
    mapping = {"obs": ["x", "v", "angle"], "reward": "r", "episode": "trial", "terminated": "end"}
    assert_same_log(vf.load(frame, columns=mapping), expected())
    swapped = vf.load(
        frame, columns={**mapping, "obs": ["v", "x", "angle"], "next_obs": ["next_obs_1", "next_obs_0", "next_obs_2"]}
    )
    np.testing.assert_array_equal(swapped.observations, expected().observations[:, [1, 0, 2]])  # fmt: skip


@pytest.mark.parametrize("prefix", ["x", "x_", "s_"])
def test_a_prefix_matches_its_columns_sorted_by_number_and_not_as_text(prefix):
    wide = np.random.default_rng(0).normal(size=(4, 12))
    join = "" if prefix.endswith("_") else "_"
    names = {f"{prefix}{join}{i}": wide[:, i] for i in reversed(range(12))}
    log = vf.load({**table(obs=None), **names, "other": ["a"] * 4}, columns={"obs": prefix})
    np.testing.assert_array_equal(log.observations, wide)


def test_a_prefix_without_numbers_matches_columns_in_their_order():
    log = vf.load({"s_y": [1.0], "s_x": [2.0], "reward": [0.0], "done": [1]}, columns={"obs": "s_"})
    np.testing.assert_array_equal(log.observations, [[1.0, 2.0]])


def test_names_of_d3rlpy_and_scope_rl_dicts():
    names = {"obs": "observations", "action": "actions", "reward": "rewards", "terminated": "terminals"}
    log = vf.load({**{names[field]: COLUMNS[field] for field in names}, "timeouts": COLUMNS["truncated"]})
    assert log.continuity.cut == 6
    scope = {"size": 4, "n_actions": 3, "state": np.eye(4), "action": [0, 1, 2, 0], "reward": [1.0] * 4}
    scope |= {"done": [0, 1, 0, 1], "pscore": [0.5] * 4, "info": {}}
    log = vf.load(scope, columns={"obs": "state", "behaviour_prob": "pscore"})
    np.testing.assert_array_equal(log.behaviour_prob, [0.5] * 4)
    np.testing.assert_array_equal(log.terminated, [0, 1, 0, 1])


def test_one_column_gives_scalars_and_a_list_of_one_gives_vectors():
    assert vf.load(table(obs=[0.5, 1, 2, 3])).observations.shape == (4,)
    source = {**table(obs=None), "x": [0.5, 1, 2, 3]}
    assert vf.load(source, columns={"obs": "x"}).observations.shape == (4,)
    assert vf.load(source, columns={"obs": ["x"]}).observations.shape == (4, 1)
    assert vf.load({**table(obs=None), "obs_0": [0.5, 1, 2, 3]}).observations.shape == (4, 1)


def test_actions_may_be_integers_or_vectors():
    assert vf.load(table(action=[0, 1, 2, 0])).action.dtype == np.int64
    log = vf.load({**table(), "action_0": [0.5] * 4, "action_1": [1, 2, 3, 4]})
    np.testing.assert_array_equal(log.action, [[0.5, 1], [0.5, 2], [0.5, 3], [0.5, 4]])


def test_columns_keep_their_precision():
    frame = pd.DataFrame(flat(COLUMNS)).astype(
        {f"{name}_{i}": np.float32 for name in ("obs", "next_obs") for i in range(3)}
    )
    assert vf.load(frame).observations.dtype == np.float32
    frame["obs_1"] = frame["obs_1"].astype(np.float64)
    assert vf.load(frame).observations.dtype == np.float64


def test_errors_about_missing_columns_list_the_existing_ones():
    refused(
        r"columns maps 'rewrad', which is not a valuefit name. The names are obs, next_obs,", columns={"rewrad": "r"}
    )
    refused(
        r"the dict has no column 'r', which columns gives for reward. It has 'obs', 'reward'", columns={"reward": "r"}
    )
    refused(r"the dict has no column 'y', which columns gives for obs", columns={"obs": ["obs", "y"]})
    refused(r"has no column 'q', which columns gives for obs", columns={"obs": "q"})
    refused(r"^.{0,40}has no column 'x{40,60}\.\.\.", columns={"cluster": "x" * 3000})
    refused(r"columns must give one column for reward; it gives \['a'\]", columns={"reward": ["a"]})
    refused(r"columns must give a column, a prefix or a list of columns for obs; it gives 3", columns={"obs": 3})
    refused(r"columns maps 'obs' twice", columns={"obs": "obs", "observation": "obs"})
    for columns in ("obs", pd.NA, ["obs"]):
        refused(r"columns is .*; it must map valuefit's names to yours", columns=columns)
    refused(
        r"has no column obs_0, obs_1, ... \(or one column obs\). Name yours with `columns=.*it has 'reward'",
        table(obs=None),
    )
    refused(r"has no column reward. Name yours", table(reward=None))
    refused(r"it has 'reward', 'c0'.*and 2 more", {"reward": [1.0], **{f"c{i}": [1] for i in range(21)}})  # fmt: skip
    refused(
        r"has 'reward' and 'rewards', which both match reward. Choose one with `columns=", {**SHORT, "rewards": [1] * 4}
    )
    refused(r"has 'obs' and 'obs_0', which both match obs", {**SHORT, "obs_0": [1] * 4})
    refused(
        r"('x_1' and 'x_01'|'x_01' and 'x_1'), which have the same number",
        {**SHORT, "x_1": [1] * 4, "x_01": [1] * 4},
        columns={"obs": "x"},
    )
    refused(r"more than one column 'reward'", pa.table([[1.0], [2.0]], names=["reward", "reward"]))


def test_control_characters_in_names_are_escaped():
    with pytest.raises(ValueError, match="it has") as caught:
        vf.load({"\x1b[31mred": [1.0], "[/]<script>": [1.0]})
    assert "\x1b" not in str(caught.value)
    assert "'[/]<script>'" in str(caught.value)


def test_errors_about_columns_that_are_not_numeric_name_the_column(tmp_path):
    words = ["a", "b", "c", "d"]
    refused(
        r"Column 'reward' of the dict holds text, 'a' at row 0 of the dict, but reward must be numbers",
        table(reward=words),
    )
    refused(r"Column 'step' of the dict holds text.*number the categories", table(step=np.array(words, object)))
    refused(
        r"Column 'obs' of the dict is not an array.*rows of equal shape, one per step",
        table(obs=[[1], [1, 2], [3], [4]]),
    )
    refused(r"Column 'reward' of the dict holds dtype complex128", table(reward=np.ones(4, complex)))
    refused(
        r"Column 'reward' of the dict has shape \(4, 2\); reward must be one number per step",
        table(reward=np.ones((4, 2))),
    )
    frame = pd.DataFrame({"obs": [1.5, 2], "reward": ["1.0", "much"], "done": [0, 1]})
    refused(r"Column 'reward' of the DataFrame holds text, 'much' at row 1 of the DataFrame, but reward", frame)
    frame.to_csv(tmp_path / "log.csv", index=False)
    refused(r"Column 'reward' of .*log.csv holds text, 'much' at row 1 of .*log.csv, but", tmp_path / "log.csv")
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "log.parquet")
    refused(r"Column 'reward' of .*log.parquet holds text, 'much' at row 1", tmp_path / "log.parquet")
    refused(r"Column 'obs' .*holds struct", pa.table({"obs": [{"x": 1.0}], "reward": [1.0], "done": [1]}))
    mixed = pd.DataFrame({"obs": [1.5, "x"], "reward": [1.0, 2], "done": [0, 1]})
    refused(r"The DataFrame cannot be read as a table: .*column obs.*Drop or convert that column", mixed)
    ragged = pa.table({"obs": [[1.0], [1.0, 2.0]], "reward": [1.0, 2.0], "done": [0, 1]})
    refused(r"The lists in column 'obs' .* differ in length \(1 and 2\). Give every step the same number", ragged)


def test_lengths_must_agree():
    refused(r"reward \('reward'\) has 3 rows, but the observations have 4", table(reward=[1.0] * 3))
    refused(r"obs_1", {**table(obs=None), "obs_0": [1.0] * 4, "obs_1": [1.0] * 3})
    refused(r"The log is empty", {"obs": np.zeros((0, 2)), "reward": [], "done": []})


# ---- ends ----------------------------------------------------------------------------------------


def test_done_alone_is_treated_as_terminated_with_a_note():
    log = vf.load(table(terminated=None, done=[0, 1, 0, 1]))
    np.testing.assert_array_equal(log.terminated, [0, 1, 0, 1])
    assert log.notes == (
        "'done' is treated as terminated: the value after the 2 steps it marks is 0. If some episodes were only cut "
        "off (by a time limit), add a column truncated.",
    )


def ending_after(lengths, **columns):
    """Columns of episodes of these lengths, the last step of each marked by done."""
    ends = np.zeros(sum(lengths), int)
    ends[np.cumsum(lengths) - 1] = 1
    return {"obs": np.arange(len(ends)) + 0.5, "reward": np.ones(len(ends)), "done": ends, **columns}


@pytest.mark.parametrize("numbered", [False, True])
def test_done_at_one_step_number_warns_of_a_time_limit(numbered, tmp_path):
    lengths = [200] * 150 + [37, 99] * 25
    episode = {"episode": np.repeat(np.arange(200), lengths)} if numbered else {}
    log = vf.load(ending_after(lengths, **episode))
    assert log.warnings == (
        "150 of the 200 episodes that 'done' ends have 200 steps, and none has more, which looks like a time limit. "
        "Their ends are treated as terminations, so the value after them is taken as 0. If it is a time limit, mark "
        "these steps in a column truncated, and give the observation after them as next_obs.",
    )
    assert vf.load(vf.save(log, tmp_path / "log")).warnings == log.warnings
    evaluation = vf.evaluate(log, discount=0.9, features="polynomial")
    assert evaluation.warnings[0] == log.warnings[0]
    assert log.warnings[0] not in evaluation.notes


@pytest.mark.parametrize(
    ("lengths", "columns"),
    [
        ([200] * 9, {}),  # few
        ([200] * 10 + [3] * 10, {}),  # half
        ([200] * 30 + [201], {}),  # not a limit
        ([1] * 50, {}),  # a bandit
        ([7] * 50, {"truncated": np.zeros(350)}),  # the log distinguishes time limits
        ([7] * 50, {"done": None, "terminated": np.arange(350) % 7 == 6}),
    ],
)
def test_other_ends_do_not_look_like_a_time_limit(lengths, columns):
    given = {name: values for name, values in ending_after(lengths, **columns).items() if values is not None}
    assert vf.load(given).warnings == ()


@pytest.mark.parametrize(
    ("given", "terminated", "truncated"),
    [
        ({"done": [0, 1, 0, 1], "terminated": [0, 1, 0, 0]}, [0, 1, 0, 0], [0, 0, 0, 1]),
        ({"done": [0, 1, 0, 1], "truncated": [0, 1, 0, 0]}, [0, 0, 0, 1], [0, 1, 0, 0]),
        ({"done": [0, 0, 0, 1], "truncated": [0, 1, 0, 0]}, [0, 0, 0, 1], [0, 1, 0, 0]),
        ({"done": [0, 1, 0, 1], "truncated": [0, 1, 0, 0], "terminated": [0, 0, 0, 1]}, [0, 0, 0, 1], [0, 1, 0, 0]),
    ],
)
def test_done_and_one_of_terminated_and_truncated_determine_the_other(given, terminated, truncated):
    log = vf.load({**table(terminated=None), "next_obs": [[2.0], [9.0], [4.0], [8.0]], **given})
    np.testing.assert_array_equal(log.terminated, terminated)
    np.testing.assert_array_equal(log.truncated, truncated)
    np.testing.assert_array_equal(log.begins, [1, 0, 1, 0])
    assert log.notes == ()


def test_contradictory_flags_are_refused():
    refused(r"done and terminated/truncated disagree at row 1", table(done=[0, 0, 0, 1]))
    refused(r"disagree at row 2.*columns=\{'done': None\}", table(done=[0, 1, 1, 1], truncated=[0, 0, 0, 0]))
    log = vf.load(table(done=[0, 0, 0, 1]), columns={"done": None})
    np.testing.assert_array_equal(log.terminated, [0, 1, 0, 1])
    refused(r"terminated must hold only 0 and 1", table(terminated=[0, 2, 0, 1]))


def test_a_log_without_end_flags_is_refused():
    refused(r"No column of the dict marks how episodes end. Add a column terminated", table(terminated=None))
    refused(r"No column of the dict marks how episodes end", table(terminated=None, episode=[0, 0, 1, 1]))


def test_a_continuing_stream_has_a_terminated_column_of_zeros():
    log = vf.load(table(terminated=[0] * 4))
    assert (len(log), len(log.episodes)) == (3, 1)
    np.testing.assert_array_equal(log.truncated, [0, 0, 1])
    assert "Episodes are assumed to end only where a step terminated" in log.notes[0]


def test_last_steps_without_a_next_observation_are_left_out_and_counted():
    log = vf.load(table(terminated=[0, 0, 0, 1], truncated=[0, 1, 0, 0]))
    np.testing.assert_array_equal(log.reward, [1.0, 3.0, 4.0])
    np.testing.assert_array_equal(log.truncated, [1, 0, 0])
    np.testing.assert_array_equal(log.observations[log.next[:2]], [[2.0], [4.0]])
    assert log.continuity.cut_text.startswith(
        "The last step of 1 episodes (25% of the steps, 5% of the variance of the rewards) was left out"
    )


def test_last_steps_with_a_missing_next_observation_are_left_out_and_other_gaps_are_refused():
    after = np.array([[2.0], [np.nan], [4.0], [np.nan]])
    log = vf.load(table(terminated=[0, 0, 0, 1], truncated=[0, 1, 0, 0], next_obs=after))
    np.testing.assert_array_equal(log.reward, [1.0, 3.0, 4.0])
    after = np.array([[2.0], [3.0], [np.nan], [np.nan]])
    flags = {"terminated": [0, 0, 0, 1], "truncated": [0, 1, 0, 0]}
    refused(
        r"next_obs is missing at step 2 .*in the middle of an episode.*'next_obs': None", table(next_obs=after, **flags)
    )
    refused(
        r"No step is left: none terminated and none has a next observation",
        table(episode=[0, 1, 2, 3], terminated=[0] * 4),
    )


def test_integer_states_with_missing_next_states_stay_integers():
    frame = pd.DataFrame({"obs": [3, 4, 3, 5], "next_obs": [4, None, 5, None], "reward": 1.0, "episode": [0, 0, 1, 1],
                          "terminated": [0, 1, 0, 0]})  # fmt: skip
    log = vf.load(frame)
    np.testing.assert_array_equal(log.observations, [3, 4, 5])
    assert log.observations.dtype == np.int64
    assert len(log) == 3


def test_without_truncation_flags_a_discontinuity_between_rows_is_a_truncation():
    log = vf.load({**table(terminated=[0, 0, 0, 1]), "next_obs": [[2.0], [7.0], [4.0], [0.0]]})
    np.testing.assert_array_equal(log.truncated, [0, 1, 0, 0])
    np.testing.assert_array_equal(log.begins, [1, 0, 1, 0])
    assert "At 1 steps the next observation differs from the observation of the next row" in log.notes[0]


# ---- order ---------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.permutations(range(N)))
def test_a_step_column_restores_any_order(order):
    step = np.concatenate([np.arange(count) for count in np.bincount(COLUMNS["episode"])])
    mixed = {name: values[list(order)] for name, values in {**COLUMNS, "step": step}.items()}
    log = vf.load(mixed)
    assert set(log.episodes) == set(range(12))
    for episode in range(12):
        assert_same_log(log.select(episode), expected().select(episode), rows=False)
    assert log.notes in ((), ("Rows were sorted by episode and step.",))


def test_contiguous_episodes_keep_their_order_and_steps_are_sorted_within_them():
    assert vf.load(table(episode=[7, 7, 3, 3], terminated=[0, 1, 0, 1])).reward.tolist() == [1, 2, 3, 4]
    log = vf.load(table(episode=[7, 7, 3, 3], terminated=[0, 1, 1, 0], step=[0, 1, 9, 8]))
    assert (log.reward.tolist(), log.episode.tolist()) == ([1, 2, 4, 3], [7, 7, 3, 3])
    assert log.notes == ("Rows were sorted by episode and step.",)


def test_step_may_be_a_time():
    when = pd.to_datetime(["2024-01-02", "2024-01-01", "2024-01-03", "2024-01-04"])
    frame = pd.DataFrame(
        {"obs": [2.5, 1, 3, 4], "reward": [2.0, 1, 3, 4], "done": [0, 0, 0, 1], "episode": 0, "t": when}
    )
    np.testing.assert_array_equal(vf.load(frame).reward, [1, 2, 3, 4])


def test_interleaved_episodes_are_grouped_in_the_order_of_their_rows():
    log = vf.load(table(episode=[7, 3, 7, 3], terminated=[0, 0, 1, 1]))
    np.testing.assert_array_equal(log.reward, [1, 3, 2, 4])
    np.testing.assert_array_equal(log.episode, [7, 7, 3, 3])
    assert log.notes == (
        "Rows of different episodes were interleaved; they were grouped by episode, in the order of the rows.",
    )


def test_order_that_cannot_be_restored_is_refused():
    refused(
        r"Episode 0 has two rows with step 1", table(episode=[0, 0, 0, 0], step=[0, 1, 1, 2], terminated=[0, 0, 0, 1])
    )
    refused(
        r"step goes from 9 to 0 at row 1, but no flag marks the end of an episode there. Add an episode column",
        table(step=[9, 0, 1, 2]),
    )
    assert len(vf.load(table(step=[0, 1, 0, 1]))) == 4
    refused(r"Step 1 is marked as terminated or truncated, but episode 0 continues", table(episode=[0, 0, 0, 0]))
    refused(r"reward is nan at step 3", table(episode=[1, 0, 1, 0], terminated=[0, 0, 1, 1], reward=[1, 2, 3, np.nan]))


def test_jumps_between_step_numbers_are_counted():
    log = vf.load(table(episode=[0] * 4, terminated=[0, 0, 0, 1], step=[0, 1, 5, 6]))
    assert (log.continuity.pairs, log.continuity.jumps, log.continuity.apart, log.notes) == (3, 1, 1, ())
    assert vf.load(table(episode=[0] * 4, terminated=[0, 0, 0, 1], step=[0, 4, 8, 12])).continuity.apart == 0


# ---- probabilities -------------------------------------------------------------------------------


def test_log_probabilities_are_exponentiated():
    behaviour, target = np.array([0.5, 0.25, 1.0, 0.5]), np.array([0.25, 0.5, 0.0, 0.5])
    with np.errstate(divide="ignore"):
        logs = {"behaviour_log_prob": np.log(behaviour), "target_log_prob": np.log(target)}
    log = vf.load(table(**logs))
    np.testing.assert_allclose(log.ratio, target / behaviour, rtol=1e-14)
    np.testing.assert_allclose(log.behaviour_prob, behaviour, rtol=1e-14)
    log = vf.load(table(behaviour_log_prob=logs["behaviour_log_prob"], target_prob=target))
    np.testing.assert_allclose(log.ratio, target / behaviour, rtol=1e-14)
    assert (vf.load(table(behaviour_log_prob=logs["behaviour_log_prob"])).ratio == 1).all()


def test_ratios_of_log_probabilities_are_finite_where_the_probabilities_underflow():
    log = vf.load(table(behaviour_log_prob=[-900.0] * 4, target_log_prob=[-901.0] * 4))
    np.testing.assert_allclose(log.ratio, np.exp(-1), rtol=1e-14)
    assert log.behaviour_prob is None
    assert "too small or too large for floating point" in log.notes[-1]
    refused(
        r"behaviour_log_prob is -900 at step 0; its exponential underflows or overflows",
        table(behaviour_log_prob=[-900.0] * 4),
    )


def test_contradictory_probabilities_are_refused():
    refused(
        r"Both behaviour_prob and behaviour_log_prob are given",
        table(behaviour_prob=[0.5] * 4, behaviour_log_prob=[-1.0] * 4),
    )
    refused(r"behaviour_log_prob is nan at step 0", table(behaviour_log_prob=[np.nan] * 4))
    refused(r"behaviour_log_prob is -inf at step 0", table(behaviour_log_prob=[-np.inf] * 4))
    refused(r"take exp first", table(behaviour_prob=[-1.0] * 4))
    refused(r"target_prob needs behaviour_prob", table(target_prob=[0.5] * 4))
    refused(
        r"Give either ratio or the two probabilities",
        table(ratio=[0.5] * 4, target_prob=[0.5] * 4, behaviour_prob=[0.5] * 4),
    )
    log = vf.load({**table(behaviour_log_prob=[-1.0] * 4), "p": [0.5] * 4}, columns={"behaviour_prob": "p"})
    np.testing.assert_array_equal(log.behaviour_prob, [0.5] * 4)


# ---- gaps and unusual files ----------------------------------------------------------------------


def test_gaps_in_columns_are_refused_with_the_row(tmp_path):
    (tmp_path / "log.csv").write_text("obs,reward,done,action\n0.5,1,0,1\n1.5,,1,\n")
    refused(r"reward is missing or infinite at row 1 of .*log.csv", tmp_path / "log.csv", columns={"action": None})
    refused(r"action is missing or infinite at row 1", tmp_path / "log.csv")
    refused(
        r"done is missing or infinite at row 1",
        pd.DataFrame({"obs": [0.5, 1], "reward": [1.0, 2], "done": [True, None]}),
    )
    refused(
        r"1 column, 1 with gaps: obs 50%; the first is at row 1",
        pa.table({"obs": [[1.0], None], "reward": [1.0, 2], "done": [0, 1]}),
    )


def test_list_columns_in_pieces_and_with_gaps():
    pieces = [pa.array([[1.0, 2.0], [3.0, 4.0]]), pa.array([None, [7.0, 8.0]], pa.list_(pa.float64()))]
    ends = {"reward": [1.0] * 4, "terminated": [0, 0, 1, 0], "episode": [0, 0, 0, 1]}
    log = vf.load(pa.table({"obs": pieces[0].tolist() * 2, "next_obs": pa.chunked_array(pieces), **ends}))
    np.testing.assert_array_equal(log.observations[log.next[[0, 1, 3]]], [[1, 2], [3, 4], [7, 8]])
    integers = pa.table({"obs": pa.array([[1, 2]] * 4, pa.list_(pa.int16(), 2)), **ends})
    assert vf.load(integers).observations.dtype == np.int16


def test_decimals_and_dictionary_encoded_columns_are_numbers():
    obs = pa.array([Decimal("1.5"), Decimal("2.5")])
    source = pa.table({"obs": obs, "reward": pa.array([1.0, 2.0]).dictionary_encode(), "done": pa.array([False, True])})
    log = vf.load(source)
    np.testing.assert_array_equal(log.observations, [1.5, 2.5])
    np.testing.assert_array_equal(log.reward, [1.0, 2.0])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_dialects(delimiter, newline, tmp_path):
    lines = [
        ["obs_0", "obs_1", "reward", "done", "a note"],
        ["1", "0.5", "1e-3", "False", "hm"],
        ["2", "2.5", "2", "True", ""],
    ]
    text = "\ufeff" + newline.join(
        delimiter.join(f'"{cell}"' if cell == "a note" else cell for cell in line) for line in lines
    )
    (tmp_path / "log.csv").write_bytes(text.encode())
    log = vf.load(tmp_path / "log.csv")
    np.testing.assert_array_equal(log.observations, [[1, 0.5], [2, 2.5]])
    np.testing.assert_array_equal(log.reward, [1e-3, 2])
    np.testing.assert_array_equal(log.terminated, [False, True])


def test_files_whose_content_does_not_match_the_extension_are_refused(tmp_path):
    contents = {
        "a.csv": (b"", r"has no header line. Write the column names in its first line"),
        "b.csv": (b"\xff\xfe\x00obs", r"first line of .* is not UTF-8 text"),
        "c.csv": (b"obs,reward,done\n1,2\n", r"cannot be read as CSV \(.*Expected 3 columns, got 2.*Correct that line"),
        "d.parquet": (b"obs,reward", r"cannot be read as Parquet \(.*Write it again"),
        "e.npz": (b"obs,reward", r"is not an .npz file, or it is damaged"),
        "f.h5": (b"obs,reward", r"is not an HDF5 file, or it is damaged"),
        "g.csv": (b"obs,reward,done\n", r"log is empty"),
    }
    for name, (content, message) in contents.items():
        (tmp_path / name).write_bytes(content)
        refused(message, tmp_path / name)
    words = {"obs": np.ones((2, 1)), "reward": np.array([b"a", b"b"]), "terminated": np.ones(2)}
    refused(
        r"Column 'rewards' of .*h.h5 holds text, 'a' at row 0 of .*h.h5, but reward must be numbers",
        d4rl(words, tmp_path / "h.h5"),
    )


def test_incomplete_minari_folders_are_refused(tmp_path):
    root = minari_dataset(COLUMNS, tmp_path)
    refused(r"define their own next observations and episodes", root, columns={"episode": "rewards"})
    (root / "data" / "main_data.hdf5").rename(root / "elsewhere")
    refused(r"has no main_data.hdf5: the Minari dataset is incomplete", root)
    (root / "data" / "metadata.json").write_text("[1, 2]")
    refused(r"metadata.json of .* is not valid Minari metadata", root)
    (root / "data" / "metadata.json").write_text('{"data_format": "arrow"}')
    refused(r"is stored as 'arrow'; valuefit reads only Minari's format 'hdf5'", root)


# ---- lines ---------------------------------------------------------------------------------------


def test_csv_integers_of_more_than_64_bits(tmp_path):
    (tmp_path / "log.csv").write_text(f"obs,reward,done,episode\n0.5,{10**20},1,{10**30}\n1.5,1,1,{10**30 + 1}\n")
    log = vf.load(tmp_path / "log.csv")
    assert log.episode_names.tolist() == [str(10**30), str(10**30 + 1)]
    assert log.reward[0] == 1e20
    (tmp_path / "log.csv").write_text(f"obs,reward,done\n{10**30},1,1\n{10**30 + 1},1,1\n")
    refused(r"Column 'obs' of .* holds text, '1000000000.* at row 0 of .*, and numbers", tmp_path / "log.csv")
