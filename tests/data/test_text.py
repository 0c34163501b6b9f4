"""Text columns: categories become one-hot entries of the observation; other text is refused with its cell."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import valuefit as vf
from helpers.log_files import source_of

N = 60
WEATHER = np.array(["sun", "rain", "snow"])[np.arange(N) % 3]


def table(**columns):
    rng = np.random.default_rng(0)
    start = {"episode": np.arange(N) // 6, "obs_0": rng.normal(size=N), "obs_1": WEATHER}
    ends = {"reward": rng.normal(size=N), "terminated": np.arange(N) % 6 == 5}
    return pd.DataFrame({**start, **ends, **columns})


def one_hot(words, categories):
    return (np.asarray(words)[:, None] == np.asarray(categories)).astype(float)


def load_as(kind, frame, folder, **settings):
    return vf.load(source_of(kind, frame, folder), **settings)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "pandas", "dict"])
def test_text_with_few_distinct_values_is_one_hot_in_every_format(kind, tmp_path):
    log = load_as(kind, table(), tmp_path)
    rows = log.observations[log.now]
    np.testing.assert_allclose(rows[:, 0], table()["obs_0"])
    np.testing.assert_array_equal(rows[:, 1:], one_hot(WEATHER, ["rain", "snow", "sun"]))
    assert log.names == ("obs_0", "obs_1=rain", "obs_1=snow", "obs_1=sun")
    assert log.notes == (
        "Column 'obs_1' is treated as 3 categories, each an entry of the observation: 'rain', 'snow', 'sun'.",
    )


def test_the_evaluation_equals_that_of_the_columns_encoded_by_hand(tmp_path):
    by_hand = table().drop(columns="obs_1")
    for k, word in enumerate(["rain", "snow", "sun"]):
        by_hand[f"obs_{k + 1}"] = (table()["obs_1"] == word).astype(float)
    text = vf.evaluate(table(), features="identity", discount=0.9).policy_value
    numbers = vf.evaluate(by_hand, features="identity", discount=0.9).policy_value
    assert text.estimate == pytest.approx(numbers.estimate, abs=1e-10)


def test_arrow_dictionaries_of_text_are_categories(tmp_path):
    columns = pa.Table.from_pandas(table(), preserve_index=False)
    index = columns.column_names.index("obs_1")
    pq.write_table(columns.set_column(index, "obs_1", columns["obs_1"].dictionary_encode()), tmp_path / "d.parquet")
    assert vf.load(tmp_path / "d.parquet").names[1:] == ("obs_1=rain", "obs_1=snow", "obs_1=sun")


def test_next_observations_share_the_categories_and_may_be_missing_at_termination(tmp_path):
    after = np.roll(WEATHER, -1).astype(object)
    after[3] = "hail"  # occurs only as a next observation
    after[5::6] = None
    frame = table(next_obs_0=np.zeros(N), next_obs_1=after)
    for kind in ("csv", "parquet", "jsonl", "pandas"):
        log = load_as(kind, frame, tmp_path)
        assert log.names[1:] == tuple(f"obs_1={word}" for word in ("hail", "rain", "snow", "sun"))
        continues = np.flatnonzero(~log.terminated)
        np.testing.assert_array_equal(
            log.observations[log.next[continues]][:, 1:],
            one_hot(after[continues].astype(str), ["hail", "rain", "snow", "sun"]),
        )


def test_a_missing_observation_is_refused(tmp_path):
    words = WEATHER.astype(object)
    words[7] = None
    for kind in ("csv", "jsonl", "pandas"):
        with pytest.raises(
            ValueError, match=r"The observations have 2 columns, 1 with gaps: obs_1 1.7%; the first is at row 7"
        ):
            load_as(kind, table(obs_1=words), tmp_path)


def test_more_than_a_hundred_distinct_texts_must_be_declared(tmp_path):
    n = 303
    frame = pd.DataFrame({"obs_0": np.zeros(n), "device": [f"d{k % 101}" for k in range(n)], "reward": 0.0, "done": 1})
    columns = {"obs": ["obs_0", "device"]}
    with pytest.raises(
        ValueError, match=r"'device' of .* more than 100 distinct values, such as 'd0' at row 0 of .*csv"
    ):
        load_as("csv", frame, tmp_path, columns=columns)
    log = load_as("csv", frame, tmp_path, columns={**columns, "categorical": ["device"]})
    assert log.observations.shape[1] == 102
    frame["device"] = [f"d{k % 100}" for k in range(n)]
    assert load_as("csv", frame, tmp_path, columns=columns).observations.shape[1] == 101


def test_text_among_numbers_is_refused_with_its_cell_and_may_be_declared(tmp_path):
    words = np.where(np.arange(N) % 2, "1.5", "2").astype(object)
    words[17] = "n/k"
    for number, part in enumerate((table()[:20], table(obs_1=words)[20:40], table(obs_1=words)[:20])):
        part.to_csv(tmp_path / f"{number}.csv", index=False)
    with pytest.raises(
        ValueError,
        match=r"'obs_1' of .*2.csv holds text, 'n/k' at row 17 of .*2.csv, and numbers written as text, '2' at row 0",
    ):
        vf.load(tmp_path / "2.csv")
    declared = vf.load(tmp_path / "2.csv", columns={"categorical": "obs_1"})
    assert declared.names[1:] == ("obs_1=1.5", "obs_1=2", "obs_1=n/k")


def test_the_cell_is_named_with_its_file_among_several(tmp_path):
    words = WEATHER.astype(object)
    words[33] = "12"
    table()[:30].to_csv(tmp_path / "part-1.csv", index=False)
    table(obs_1=words, reward=["high" if k == 45 else "1" for k in range(N)])[30:].to_csv(
        tmp_path / "part-2.csv", index=False
    )
    with pytest.raises(
        ValueError, match=r"'reward' holds text, 'high' at row 15 of .*part-2.csv, but numbers in .*1.csv"
    ):
        vf.load(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"text, 'sun' at row 0 of .*part-1.csv, and numbers written as text, '12' at row 3 of .*part-2",
    ):
        vf.load(tmp_path, columns={"reward": "obs_0"})
    with pytest.raises(ValueError, match=r"holds text, 'high' at row 15 of .*part-2.csv, but reward must be numbers"):
        vf.load(tmp_path / "part-2.csv", columns={"obs": "obs_0"})


def test_numbers_may_be_declared_as_categories():
    log = vf.load(table(obs_1=np.arange(N) % 4 * 10), columns={"categorical": ["obs_1"]})
    assert log.names[1:] == ("obs_1=0", "obs_1=10", "obs_1=20", "obs_1=30")
    np.testing.assert_array_equal(log.observations[log.now][:, 1:], np.tile(np.eye(4), (15, 1)))


def test_wrong_declarations_are_refused():
    for categorical, message in (
        (
            ["weather"],
            r"declares 'weather' as categorical, but the observations of the DataFrame are in 'obs_0', 'obs_1'",
        ),
        ([7], r"gives \[7\] for categorical; give a list of your columns"),
        ({"obs_1": 1}, "for categorical; give a list"),
    ):
        with pytest.raises(ValueError, match=message):
            vf.load(table(), columns={"categorical": categorical})
    with pytest.raises(ValueError, match=r"Column 'obs_1' as 60 categories needs 14.1 KiB in memory"):
        vf.load(table(obs_1=np.arange(N)), columns={"categorical": ["obs_1"]}, limit=10_000)


@pytest.mark.parametrize(
    ("changes", "categorical", "message"),
    [
        ({"obs_1": "sun"}, None, r"'obs_1' of the dict has shape \(\)"),
        ({"obs_1": np.array([["sun", "rain"]] * N)}, None, r"'obs_1' of the dict has shape \(60, 2\)"),
        ({"obs_1": np.array([{}] * N)}, None, r"'obs_1' of the dict is an object of type dict at row 0"),
        ({"obs_1": np.zeros((N, 2))}, "obs_1", r"has shape \(60, 2\); categories must be one per step"),
        ({"obs_1": np.array([b"\xff"] * N)}, None, r"'obs_1' of the dict is not UTF-8 text at row 0"),
        ({"obs_1": ["x" * 201] * N}, None, r"at most 200 characters"),
    ],
)
def test_odd_columns_of_text_are_one_sentence(changes, categorical, message):
    columns = {name: values.to_numpy() for name, values in table().items()}
    with pytest.raises(ValueError, match=message):
        vf.load({**columns, **changes}, columns={"categorical": categorical})


def test_columns_that_rllib_packed_are_refused_in_every_format(tmp_path):
    packed = "BCJNGGhAjgAAAAAAAABxiQAAAFKABZWDAAEA8hmMEm51bXB5"  # the first bytes of an LZ4 frame, in base64
    frame = pd.DataFrame({"obs": [packed] * 4, "reward": 0.0, "done": [0, 0, 0, 1]})
    message = r"Column 'obs' is packed by RLlib in .* does not unpickle objects, .*output_compress_columns=\[\]"
    for kind in ("csv", "parquet", "jsonl", "pandas"):
        with pytest.raises(ValueError, match=message):
            load_as(kind, frame, tmp_path)
    batch = {"type": "SampleBatch", "obs": packed, "new_obs": packed, "rewards": [1.0], "dones": [True], "eps_id": [3]}
    (tmp_path / "batch.json").write_text(json.dumps(batch) + "\n")
    with pytest.raises(ValueError, match=message.replace("in .*", "in line 1 of .*batch.json.*")):
        vf.load(tmp_path / "batch.json")
