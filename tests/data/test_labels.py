"""Ids of any size stay integers, and ids that are text are numbered, from every reader to values and saved files."""

import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from helpers.log_files import assert_same_log, d4rl

PLACES = ["hall", "kitchen", "hall", "garden", "kitchen", "garden"]
NAMED = {
    "obs": PLACES,
    "next_obs": ["kitchen", "cellar", "garden", "hall", "garden", None],
    "reward": [0.0, 1.0, 2.0, 0.0, 3.0, 1.0],
    "terminated": [0, 0, 0, 1, 0, 1],
    "truncated": [0, 1, 0, 0, 0, 0],
    "episode": ["b7", "b7", "a-1", "a-1", "Zoë", "Zoë"],
}
NUMBERED = {  # the same with numbers in the sorted order of the names
    **NAMED,
    "obs": [2, 3, 2, 1, 3, 1],
    "next_obs": [3, 0, 1, 2, 1, 0],
    "episode": [2, 2, 1, 1, 0, 0],
}


def csv(columns, folder):
    pd.DataFrame(columns).to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


def parquet(columns, folder):
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return folder / "log.parquet"


def npz(columns, folder):
    plain = {**columns, "next_obs": ["" if name is None else name for name in columns["next_obs"]]}
    np.savez(folder / "log.npz", **{name: np.array(values) for name, values in plain.items()})
    return folder / "log.npz"


def hdf5(columns, folder):
    plain = {**columns, "next_obs": [name or "hall" for name in columns["next_obs"]]}
    arrays = {name: np.array(values, object if name in ("obs", "next_obs") else None) for name, values in plain.items()}
    return d4rl(arrays, folder / "log.h5")


SOURCES = {
    "dict": lambda columns, folder: columns,
    "frame": lambda columns, folder: pd.DataFrame(columns),
    "categories": lambda columns, folder: pd.DataFrame(columns).astype({"obs": "category", "next_obs": "category"}),
    "csv": csv,
    "parquet": parquet,
    "npz": npz,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_text_names_states_and_episodes_in_every_source(kind, tmp_path):
    log, numbered = vf.load(SOURCES[kind](NAMED, tmp_path)), vf.load(NUMBERED)
    assert [str(log.episode_names[episode]) for episode in log.episode] == NAMED["episode"]
    assert [str(log.state_names[state]) for state in log.observations[log.now]] == PLACES
    for name in ("reward", "terminated", "truncated", "begins"):
        np.testing.assert_array_equal(getattr(log, name), getattr(numbered, name))
    assert "The text in 'obs' names 4 states, numbered in sorted order." in log.notes
    np.testing.assert_array_equal(log.select("a-1").reward, [2.0, 0.0])
    np.testing.assert_array_equal(log.select(["b7", "Zoë"]).reward, [0.0, 1.0, 3.0, 1.0])


def test_hdf5_text_names_states(tmp_path):
    log = vf.load(hdf5({name: NAMED[name] for name in NAMED if name != "episode"}, tmp_path))
    assert [str(log.state_names[state]) for state in log.observations[log.now]] == PLACES


def test_values_starts_and_policies_by_name_are_those_by_number():
    behaviour = {"action": [0, 1, 0, 1, 1, 0], "behaviour_prob": [0.5] * 6}
    table = np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1], [0.3, 0.7]])  # a row for each name in sorted order
    settings = {"discount": 0.9, "ridge": 0.01, "policy": table}
    named = vf.evaluate({**NAMED, **behaviour}, starts=["hall", "garden"], **settings)
    numbered = vf.evaluate({**NUMBERED, **behaviour}, starts=[2, 1], **settings)
    assert named.policy_value.estimate == numbered.policy_value.estimate
    np.testing.assert_array_equal(named.value(["kitchen", "hall"]), numbered.value([3, 2]))
    with pytest.raises(ValueError, match="There is no state 'attic' in this log"):
        named.value(["attic"])
    with pytest.raises(ValueError, match=r"The log numbers its states and has no names for them. Give state numbers"):
        numbered.value(["hall"])
    with pytest.raises(ValueError, match="There is no episode 'x' in this log"):
        named.log.select("x")


@pytest.mark.parametrize("name", ["folder", "log.parquet", "log.npz"])
def test_names_survive_saving_also_those_without_a_step(name, tmp_path):
    log = vf.load(NAMED)
    saved = vf.load(vf.save(log, tmp_path / name))
    assert_same_log(saved, log, rows=name == "folder")
    part = log.select("Zoë")  # has neither hall nor cellar
    saved = vf.load(vf.save(part, tmp_path / f"part-{name}"))
    np.testing.assert_array_equal(saved.state_names, log.state_names)
    np.testing.assert_array_equal(saved.observations[saved.now], log.observations[part.now])
    np.testing.assert_array_equal(saved.episode, part.episode)
    assert len(saved.select("Zoë")) == 2


def test_a_saved_evaluation_gives_values_by_name(tmp_path):
    evaluation = vf.evaluate(NAMED, discount=0.9, ridge=0.01)
    loaded = vf.Evaluation.load(evaluation.save(tmp_path / "evaluation.npz"))
    np.testing.assert_array_equal(loaded.value(PLACES), evaluation.value(PLACES))
    assert len(loaded.log.select("b7")) == 2


@pytest.mark.parametrize("field", ["state", "action"])
@pytest.mark.parametrize(
    ("names", "message"), [(["b", "a"], "is not a sorted list"), (["a"], "does not name every id")]
)
def test_damaged_names_in_a_folder_are_refused(field, names, message, tmp_path):
    path = vf.save(vf.load(NAMED if field == "state" else ACTIONS), tmp_path / "log")
    np.save(path / f"{field}_names.npy", np.array(names))
    with pytest.raises(ValueError, match=rf"{field}_names\.npy {message}"):
        vf.load(path)
    if field == "action":  # others are not read in parts
        with pytest.raises(ValueError, match=rf"{field}_names\.npy {message}"):
            vf.load(path, memory="stream").shards[0].read()


@pytest.mark.parametrize("ids", [[2**60 + 1, 2**60 + 4, 2**60 + 7], [2**63 + 1, 2**63 + 2, 2**64 - 1]])
@pytest.mark.parametrize("kind", ["dict", "csv", "parquet", "npz"])
def test_large_state_ids_stay_apart(kind, ids, tmp_path):
    one, two, three = ids
    columns = {
        "obs": np.array([one, two, three] * 20, np.uint64),
        "next_obs": np.array([two, three, one] * 20, np.uint64),
        "reward": [1.0, 10.0, 100.0] * 20,
        "terminated": [0, 0, 1] * 20,
    }
    evaluation = vf.evaluate(SOURCES[kind](columns, tmp_path), discount=0.5, ridge=0.0)
    np.testing.assert_allclose(evaluation.value(np.array(ids, np.uint64)), [31.0, 60.0, 100.0], rtol=1e-6)
    loaded = vf.Evaluation.load(evaluation.save(tmp_path / "evaluation.npz"))
    np.testing.assert_array_equal(loaded.value(np.array(ids, np.uint64)), evaluation.value(np.array(ids, np.uint64)))
    with pytest.raises(ValueError, match=f"Row 0 has {one - 1} in column 0, which is not among the 3 values"):
        evaluation.value(np.array([one - 1], np.uint64))


def test_uuids_are_ids():
    rng = np.random.default_rng(0)
    ids = sorted(str(uuid.UUID(bytes=rng.bytes(16))) for _ in range(300))
    log = vf.load({"obs": ids, "reward": np.ones(300), "terminated": [0, 1] * 150, "episode": np.repeat(ids[:150], 2)})
    assert (len(log.observations), len(log.episodes)) == (300, 150)
    np.testing.assert_array_equal(log.state_names, ids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"obs": ["1", "2", "n/a", "4", "5", "6"]},
            r"'obs' of the dict holds text, 'n/a' at row 2 of the dict, and numbers",
        ),
        (
            {"obs": ["1", "2", "3", "4", "5", "6"]},
            r"holds text, '1' at row 0 of the dict, and numbers.*Write all of them as numbers; if all",
        ),
        ({"obs": [*PLACES[:5], None]}, r"'obs' labels states, and 1 of 6 are missing, the first at row 5"),
        ({"episode": ["a", None, "b", "b", "c", "c"]}, r"episode is missing or infinite at row 1"),
        ({"episode": np.array(["a", 1, "b", "b", "c", "c"], object)}, r"is an object of type int at row 1"),
        ({"episode": ["a" * 201] * 6}, r"'episode' of the dict is no id at row 0: ids have at most 200 characters"),
        ({"episode": np.array([b"\xff"] * 6)}, r"'episode' of the dict is not UTF-8 text at row 0"),
        ({"next_obs": [1.0] * 6}, r"Column 'next_obs' of the dict is an object of type float at row 0"),
        ({"step": [0, 0, 0, 1, 0, 1]}, r"Episode 'b7' has two rows with step 0"),
    ],
)
def test_text_that_is_not_an_id_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        vf.load({**NAMED, **changes})


# ---- actions -------------------------------------------------------------------------------------

ACTIONS = {
    "obs": [[float(t), 0.0] for t in range(6)],
    "reward": [0.0, 1.0, 2.0, 0.0, 3.0, 1.0],
    "terminated": [0, 0, 1, 0, 0, 1],
    "action": ["stay", "left", "stay", "right", "left", "zurück"],
}


@pytest.mark.parametrize("kind", ["dict", "frame", "csv", "parquet", "npz"])
def test_text_names_actions_in_every_source(kind, tmp_path):
    columns = {name: values for name, values in ACTIONS.items() if name != "obs"} | {"obs_0": range(6)}
    source = {**columns, "next_obs": []} if kind == "npz" else columns
    if kind == "npz":
        np.savez(tmp_path / "log.npz", **{name: np.array(values) for name, values in columns.items()})
        log = vf.load(tmp_path / "log.npz")
    else:
        log = vf.load(SOURCES[kind](source, tmp_path))
    assert log.action_names.tolist() == ["left", "right", "stay", "zurück"]
    assert log.action_names[log.action].tolist() == ACTIONS["action"]
    assert log[2:4].action_names.tolist() == log.action_names.tolist()
    assert any("names 4 actions, numbered in sorted order: 'left', 'right', 'stay', 'zurück'." in n for n in log.notes)


@pytest.mark.parametrize("name", ["folder", "log.parquet", "log.npz"])
@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_names_of_actions_survive_saving_also_those_without_a_step(kind, name, tmp_path):
    given = [text.encode() for text in ACTIONS["action"]] if kind == "bytes" else ACTIONS["action"]
    log = vf.Transitions.from_arrays(
        np.array(ACTIONS["obs"]), ACTIONS["reward"], terminated=ACTIONS["terminated"], action=given
    )
    for part in (log, log.select(0)):  # the second has neither right nor back
        saved = vf.load(vf.save(part, tmp_path / f"{len(part)}-{name}"))
        np.testing.assert_array_equal(saved.action_names, log.action_names)
        np.testing.assert_array_equal(saved.action, part.action)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(6, complex), r"numbers or text, one entry per step.*shape \(6,\) and dtype complex128"),
        (np.zeros(6, "M8[s]"), r"numbers or text.*dtype datetime64"),
        (np.zeros(6, [("a", "i4"), ("b", "f8")]), r"numbers or text.*dtype \[\('a', '<i4'\)"),
        (["stay", "1", "stay", "left", "2", "3"], r"action holds text, 'stay' at step 0, and numbers"),
        (["0", "1", "0", "1", "2", "10"], r"action holds text, '0' at step 0, and numbers.*all of them as numbers"),
        (np.array(["a", None, "b", "b", "a", "a"], object), r"action is missing at step 1"),
        (["a", "", "b", "b", "a", "a"], r"action is missing at step 1. Give every step an action"),
        (np.array(["a", 1, "b", "b", "a", "a"], object), r"action is an object of type int at row 1"),
        ([["a", "b"]] * 6, r"action has shape \(6, 2\)"),
        ([b"\xff"] * 6, r"action is not UTF-8 text at row 0"),
    ],
    ids=str,
)
def test_actions_that_are_neither_numbers_nor_text_are_refused(action, message):
    with pytest.raises(ValueError, match=message):
        vf.Transitions.from_arrays(
            np.array(ACTIONS["obs"]), ACTIONS["reward"], terminated=ACTIONS["terminated"], action=action
        )
    with pytest.raises(ValueError, match="action"):  # by another sentence, which names the column
        vf.load({**ACTIONS, "action": action})


# ---- ids that are digits ---------------------------------------------------------------------------


def ids_of(tmp_path, *files):
    """The log of CSV files with these lines of id, action, observation, reward and end."""
    for number, lines in enumerate(files):
        text = "\n".join(["episode,action,obs,reward,terminated", *lines])
        (tmp_path / f"part-{number}.csv").write_text(text)
    return vf.load([tmp_path / f"part-{number}.csv" for number in range(len(files))])


def test_leading_zeros_of_ids_in_csv_are_kept(tmp_path):
    log = ids_of(tmp_path, ["007,01,.1,1,0", "007,1,.2,1,1", "7,1,.3,1,0", "7,01,.4,1,1"])
    assert (len(log), len(log.episodes), log.episode_names.tolist()) == (4, 2, ["007", "7"])
    assert log.action_names[log.action].tolist() == ["01", "1", "1", "01"]


def test_ids_with_leading_zeros_join_with_larger_ones_of_other_files(tmp_path):
    log = ids_of(tmp_path, ["098,0,.1,1,1", "099,1,.2,1,0"], ["099,1,.2,1,1", "100,0,.3,1,1"])
    assert log.episode_names.tolist() == ["098", "099", "100"]
    assert log.episode_names[log.episode].tolist() == ["098", "099", "099", "100"]


def test_ids_that_are_numbers_in_csv_remain_numbers(tmp_path):
    log = ids_of(tmp_path, ["7, 0.50,.1,1,0", "7,0.5,.2,1,1", " 8,.25,.3,1,0", "8,1e-1,.4,1,1"])
    assert (log.episode_names, log.action_names) == (None, None)
    assert log.action.tolist() == [0.5, 0.5, 0.25, 0.1]
    log = ids_of(tmp_path, ["7,true,.1,1,0", "7,false,.2,1,1"])
    assert (log.action_names, log.action.tolist()) == (None, [True, False])


def test_one_of_the_names_of_actions_may_be_a_number(tmp_path):
    log = ids_of(tmp_path, ["a,10,.1,1,0", "a,sport,.2,1,1", "10,news,.3,1,0", "10,10,.4,1,1"])
    assert log.action_names[log.action].tolist() == ["10", "sport", "news", "10"]
    lines = ["a,1,.1,1,0", "a,2,.2,1,1", "b,l,.3,1,0", "b,1,.4,1,1"]
    with pytest.raises(ValueError, match=r"holds text, 'l' at row 2 of .* such as '1'. If that is a typing error, cor"):
        ids_of(tmp_path, lines)
    assert ids_of(tmp_path, [line.replace("l", "1") for line in lines]).action.tolist() == [1, 2, 1, 1]
    names = ids_of(tmp_path, ["a,no. 1,.1,1,0", "a,no. 2,.2,1,1", "b,l,.3,1,0", "b,no. 1,.4,1,1"])
    assert names.action_names.tolist() == ["l", "no. 1", "no. 2"]


def test_text_in_an_observation_of_numbers_is_refused_with_the_columns():
    rng = np.random.default_rng(0)
    rows = {"age": rng.normal(60, 9, 200), "ward": rng.integers(0, 3, 200), "kind": rng.choice(["a", "b"], 200)}
    table = {**rows, "reward": rng.normal(size=200), "terminated": [0, 1] * 100}
    evaluation = vf.evaluate(vf.load(table, columns={"obs": ["age", "ward"]}), discount=0.5, features="identity")
    with pytest.raises(ValueError, match=r"'icu' in row 1 is text.* of 2 numbers, in this order: 'age', 'ward'\.$"):
        evaluation.value([[60.0, 1], [60.0, "icu"]])
    assert evaluation.value([[60.0, 1], [60.0, 2]]).shape == (2,)
    evaluation = vf.evaluate(vf.load(table, columns={"obs": ["age", "kind"]}), discount=0.5, features="identity")
    with pytest.raises(
        ValueError, match=r"'a' in row 0 .* order: 'age', 'kind=a', 'kind=b'\. A category is 1 in the en"
    ):
        evaluation.value([[60.0, "a"]])
    assert evaluation.value([[60.0, 1, 0]]).shape == (1,)
