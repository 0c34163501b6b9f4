"""Gaps in observations: refused by column with their shares, or filled alike wherever the log comes from."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import valuefit as vf
from helpers.log_files import assert_same_log, d4rl, minari_dataset, source_of, steps
from valuefit.data.gaps import GapScan, numbered_columns

N = 60
UNKNOWN = np.arange(N) % 10 == 4  # 10% of the rows
WARDS = np.array(["icu", "ward", None], object)[np.arange(N) % 3]


def table(**columns):
    """60 steps, ten episodes, of two numbers; the second is missing in 10%."""
    rng = np.random.default_rng(0)
    start = {"episode": np.arange(N) // 6, "obs_0": rng.normal(size=N)}
    start["obs_1"] = np.where(UNKNOWN, np.nan, rng.normal(size=N))
    return pd.DataFrame({**start, "reward": rng.normal(size=N), "terminated": np.arange(N) % 6 == 5, **columns})


def filled_by_hand(frame):
    """Observations of `table` with the median and an indicator."""
    second = frame["obs_1"]
    return np.column_stack([frame["obs_0"], second.fillna(second.median()), second.isna()])


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "npz", "arrow", "pandas", "dict", "lists", "masked"])
def test_every_source_is_filled_with_medians_and_indicators(kind, tmp_path):
    log = vf.load(source_of(kind, table(), tmp_path), missing="flag")
    np.testing.assert_allclose(log.observations[log.now], filled_by_hand(table()), rtol=1e-12)
    assert log.names == ("obs_0", "obs_1", "obs_1 missing")
    assert "2 columns, 1 with gaps: obs_1 10%: numbers with their median" in log.notes[-1]


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "npz", "arrow", "pandas", "dict", "lists", "masked"])
def test_every_source_is_refused_by_column_without_advice_to_remove_steps(kind, tmp_path):
    with pytest.raises(ValueError, match="2 columns, 1 with gaps: obs_1 10%; the first is at row 4 of") as error:
        vf.load(source_of(kind, table(), tmp_path))
    assert 'missing="flag"' in str(error.value)
    assert "emove" not in str(error.value)


def test_datasets_of_d4rl_and_minari_are_filled(tmp_path):
    columns = steps()
    path = columns["obs"][:, 1] > 0.8
    columns["obs"] = np.where(path[:, None] & (np.arange(3) == 1), np.nan, columns["obs"])
    follows = np.append(columns["episode"][1:] == columns["episode"][:-1], False)
    columns["next_obs"][follows] = columns["obs"][1:][follows[:-1]]
    logs = [vf.load(d4rl(columns, tmp_path / "log.h5"), missing="flag")]
    logs.append(vf.load(minari_dataset(columns, tmp_path), missing="flag"))
    for log in logs:
        rows = log.observations[log.now]
        np.testing.assert_array_equal(rows[:, 3] == 1, path)
        assert set(rows[path, 1]) == {np.nanmedian(columns["obs"][:, 1])}
        assert log.continuity.detours == 0


def test_text_has_a_category_of_its_own_for_missing(tmp_path):
    frame = table(obs_1=WARDS)
    for kind in ("csv", "parquet", "jsonl", "pandas"):
        log = vf.load(source_of(kind, frame, tmp_path), missing="flag")
        assert log.names == ("obs_0", "obs_1=icu", "obs_1=ward", "obs_1 missing")
        expected = np.eye(3)[np.arange(N) % 3]
        np.testing.assert_array_equal(log.observations[log.now][:, 1:], expected)
        raw = log.filling.raw(log.observations[log.now])
        np.testing.assert_array_equal(np.isnan(raw[:, 1:]).all(axis=1), np.arange(N) % 3 == 2)


def test_a_missing_name_of_a_state_is_a_state():
    names = {"obs": ["hall", None, "room", "hall"], "reward": [0.0, 1, 2, 3], "done": [0, 0, 0, 1]}
    log = vf.load(names, missing="flag")
    assert log.state_names.tolist() == ["hall", "missing", "room"]
    np.testing.assert_array_equal(log.observations[log.now], [0, 1, 2, 0])
    with pytest.raises(ValueError, match=r'labels states, and 1 of 4 are missing.*as `missing="flag"` does'):
        vf.load(names)


def test_a_missing_number_of_a_state_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("obs,reward,done\n1,1,0\n,1,0\n3,1,1\n")
    for missing in ("refuse", "flag"):
        with pytest.raises(ValueError, match=r"labels states, and 1 of 3 are missing, the first at row 1 of .*log.csv"):
            vf.load(tmp_path / "log.csv", missing=missing)
    (tmp_path / "log.csv").write_text("obs,reward,done\n1,1,0\n0,1,0\n3,1,1\n")  # as the message says
    assert len(vf.load(tmp_path / "log.csv").observations) == 3


@pytest.mark.parametrize("name", ["reward", "terminated", "truncated", "action", "behaviour_prob", "ratio", "episode"])
def test_gaps_are_filled_in_observations_only(name):
    values = np.where(np.arange(N) % 20 == 3, np.nan, 1.0 if name in ("behaviour_prob", "ratio") else 0.0)
    frame = table(**{name: values})
    with pytest.raises(ValueError, match=rf"{name} is (nan|missing or infinite) at .* 3.*and in 3 of 60 in all"):
        vf.load(frame, missing="flag")


def test_next_observations_are_filled_alike():
    frame = table()
    after = frame[["obs_0", "obs_1"]].shift(-1).rename(columns=lambda name: f"next_{name}")
    after.loc[[5, 59], :] = np.nan  # terminated there: nothing follows
    after.loc[11, "next_obs_0"], after.loc[11, "next_obs_1"] = 0.5, np.nan
    ended = frame["terminated"] & (np.arange(N) != 11)
    log = vf.load(frame.assign(terminated=ended, **after), missing="flag")
    row = log.observations[log.next[11]]
    np.testing.assert_array_equal(row, [0.5, frame["obs_1"].median(), 1.0])
    np.testing.assert_array_equal(log.next[:5], log.now[1:6])  # the same gap on both sides
    assert log.continuity.cut == 0


def test_a_next_observation_that_is_missing_as_a_whole_is_none():
    frame = table(terminated=False, truncated=np.arange(N) % 6 == 5)
    after = frame[["obs_0", "obs_1"]].shift(-1).rename(columns=lambda name: f"next_{name}")
    after[frame["truncated"]] = np.nan
    log = vf.load(frame.assign(**after), missing="flag")
    assert (len(log), log.continuity.cut) == (50, 10)


def test_arrays_are_filled_as_tables_are():
    frame = table()
    pairs = frame[["obs_0", "obs_1"]].to_numpy()
    columns = {"reward": frame["reward"], "terminated": frame["terminated"]}
    log = vf.Transitions.from_arrays(pairs, **columns, missing="flag")
    np.testing.assert_array_equal(log.observations, filled_by_hand(frame))
    with pytest.raises(ValueError, match="2 columns, 1 with gaps: column 1 10%; the first is at row 4"):
        vf.Transitions.from_arrays(pairs, **columns)
    with pytest.raises(ValueError, match="NaN or infinite at row 0"):
        vf.Transitions.from_arrays(np.where(pairs > 0, np.inf, 0.0), **columns)
    whole = np.full_like(pairs, np.nan)
    with pytest.raises(ValueError, match="next_observation is missing as a whole at step 0"):
        vf.Transitions.from_arrays(pairs, **columns, next_observation=whole, missing="flag")


@pytest.mark.parametrize("name", ["log", "log.parquet", "log.npz"])
def test_saved_logs_keep_how_gaps_are_filled(name, tmp_path):
    log = vf.load(table(step=np.arange(N) * np.where(np.arange(N) > 30, 2, 1)), missing="flag")
    part = log.select([1, 3, 4])  # whose own medians would be others
    vf.save(part, tmp_path / name)
    back = vf.load(tmp_path / name)
    assert_same_log(part, back, rows=False)
    assert (back.filling, back.continuity) == (log.filling, log.continuity)
    assert log.continuity.jumps > 0
    if name != "log.npz":
        streamed = [shard.read() for shard in vf.load(tmp_path / name, memory="stream").shards]
        assert streamed[0].filling == log.filling
        assert sum(one.continuity.pairs for one in streamed) == log.continuity.pairs


@pytest.mark.parametrize("change", ["columns", "fill", "shape", "counts", "text"])
def test_damaged_facts_of_a_saved_log_are_refused(change, tmp_path):
    import json

    vf.save(vf.load(table(), missing="flag"), tmp_path / "log")
    metadata = json.loads((tmp_path / "log" / "valuefit.json").read_text())
    facts = metadata["facts"]
    if change == "columns":
        facts["filling"]["columns"][0][2] = 7
    elif change == "fill":
        facts["filling"]["gaps"][0]["fill"] = "much"
    elif change == "shape":
        facts["filling"]["shape"] = [3]
    elif change == "counts":
        facts["continuity"]["pairs"] = -1
    else:
        metadata["facts"] = "none"
    (tmp_path / "log" / "valuefit.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="is not a valuefit log, or it is damaged"):
        vf.load(tmp_path / "log")


def test_shards_are_filled_like_the_log_in_memory(tmp_path):
    rng = np.random.default_rng(1)
    n = 6000
    late = np.where((np.arange(n) > 5000) & (rng.random(n) < 0.3), np.nan, rng.normal(size=n))  # in the last shard
    frame = pd.DataFrame({
        "episode": np.arange(n) // 30, "obs_0": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
        "obs_1": late, "reward": rng.normal(size=n), "terminated": np.arange(n) % 30 == 29,
    })  # fmt: skip
    frame[:2500].to_parquet(tmp_path / "part-1.parquet")
    frame[2500:].to_parquet(tmp_path / "part-2.parquet")
    whole = vf.load(frame, missing="flag")
    parts = vf.load(tmp_path, memory="stream", missing="flag", limit=900_000)
    assert len(parts.shards) > 2
    rows = []
    for shard in parts.shards:
        one = shard.read()
        assert one.filling == whole.filling
        rows.append(one.observations[one.now])
    np.testing.assert_array_equal(np.concatenate(rows), whole.observations[whole.now])
    assert "2 columns, 2 with gaps: obs_0" in parts.notes[-1]
    little = vf.load(tmp_path, memory="stream", missing="flag", limit=100_000)
    assert "with their median in 750 of 6,000 steps" in little.notes[-1]
    assert {shard.filling for shard in little.shards} == {little.shards[0].filling}
    with pytest.raises(ValueError, match=r"In rows 0 to 1,019 of .*part-1.*2 columns, 1 with gaps: obs_0"):
        vf.load(tmp_path, memory="stream", limit=100_000).shards[0].read()


def test_sources_that_cannot_be_filled_say_what_can():
    dd = pytest.importorskip("dask.dataframe")
    with pytest.raises(ValueError, match=r'DataFrame are not filled.*Parquet.*`memory="stream"` and `missing="flag"`'):
        vf.load(dd.from_pandas(table(), npartitions=2), missing="flag")
    with pytest.raises(ValueError, match="missing is 'fill'; it must be one of 'refuse', 'flag'"):
        vf.load(table(), missing="fill")


def test_a_value_of_a_column_without_gaps_is_required():
    filling = vf.load(table(), missing="flag").filling
    np.testing.assert_array_equal(filling.fill([[1.0, None]])[0], [1.0, table()["obs_1"].median(), 1.0])
    with pytest.raises(ValueError, match=r"'obs_0' is missing at row 1\. The log has no gap in this column"):
        filling.fill([[1.0, 2.0], [np.nan, 2.0]])
    with pytest.raises(ValueError, match=r"observations have shape \(1, 4\); give 2 numbers for each"):
        filling.fill([[1.0, 2.0, 3.0, 4.0]])


def test_a_log_without_gaps_is_the_same_with_both_settings():
    frame = table(obs_1=1.0)
    assert_same_log(vf.load(frame), vf.load(frame, missing="flag"))
    assert vf.load(frame, missing="flag").filling is None


@given(
    observations=arrays(
        np.float64, st.tuples(st.integers(1, 8), st.integers(1, 3)), elements=st.sampled_from([np.nan, 0.0, 1.5, -2.0])
    )
)
def test_filling_is_undone_exactly(observations):
    """Also where a column is missing everywhere, the first row is, or there is one step."""
    n, width = observations.shape
    log = vf.Transitions.from_arrays(observations, np.zeros(n), terminated=np.arange(n) == n - 1, missing="flag")
    gaps = np.isnan(observations).any(axis=0)
    assert (log.filling is None) == (not gaps.any())
    if log.filling is None:
        return
    assert np.isfinite(log.observations).all()
    assert log.observations.shape[1] == width + gaps.sum()
    np.testing.assert_array_equal(log.filling.raw(log.observations), observations)
    np.testing.assert_array_equal(log.filling.fill(observations), log.observations)
    np.testing.assert_array_equal(log.filling.fill(log.observations), log.observations)
    for gap in log.filling.gaps:
        known = observations[~np.isnan(observations[:, gap.first]), gap.first]
        assert gap.fill == (np.median(known) if len(known) else 0)
        assert gap.share == np.isnan(observations[:, gap.first]).mean()


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), limit=st.integers(8, 400))
def test_a_scan_in_parts_counts_what_one_scan_counts(sizes, limit):
    rng = np.random.default_rng(sum(sizes))
    rows = np.where(rng.random((sum(sizes), 2)) < 0.4, np.nan, rng.normal(size=(sum(sizes), 2)))
    whole, parts = GapScan(numbered_columns(rows)), GapScan(numbered_columns(rows), limit)
    whole.add(rows)
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        parts.add(part)
    assert (whole.counts.tolist(), whole.first, whole.rows) == (parts.counts.tolist(), parts.first, parts.rows)
    kept = rows[:: parts.stride]
    np.testing.assert_array_equal(np.concatenate(parts._parts), kept)
    assert kept.nbytes <= max(limit, 16)


def test_the_facts_of_a_log_are_frozen_and_kept_by_selections():
    log = vf.load(table(), missing="flag")
    assert log[5:9].filling is log.filling
    with pytest.raises(dataclasses.FrozenInstanceError):
        log.filling.gaps = ()
