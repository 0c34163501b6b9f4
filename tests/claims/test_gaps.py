"""Logs with gaps: flagged gaps give right answers by every route, removed rows a caution; policies see the gaps."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import valuefit as vf
from coverage_study.clinical import answers, clinical_log
from coverage_study.records import generator
from valuefit.features.registry import make


@pytest.fixture(scope="module")
def clinical():
    return clinical_log(generator("clinical", 4))


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_flagged_gaps_give_a_right_answer_and_removed_rows_a_caution(clinical, values):
    found = answers(clinical, values)
    flagged, removed = found["gaps flagged"], found["rows removed"]
    low, high = flagged.policy_value.interval
    assert low <= clinical.truth <= high
    assert flagged.verdict.level == "sound"
    assert removed.policy_value.interval[0] > clinical.truth
    assert removed.verdict.level == "caution"
    assert any('put them back and load the log with `missing="flag"`' in reason for reason in removed.verdict.reasons)
    assert any("45 columns, 3 with gaps: lactate" in note for note in flagged.notes)


def test_the_refusal_of_the_clinical_log_names_columns_and_shares(clinical):
    with pytest.raises(ValueError, match=r"45 columns, 3 with gaps: lactate 1[0-9]%, creatinine 1?[0-9.]+%, ward"):
        vf.load(clinical.columns, columns=clinical.names)


# ---- a small log -----------------------------------------------------------------------------------------------------

N = 600
COLUMNS = {"obs": ["x", "y", "place"]}


def frame(n=N, **columns):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, n))
    place = rng.choice(["hall", "room"], n).astype(object)
    place[rng.random(n) < 0.05] = None
    return pd.DataFrame({
        "episode": np.arange(n) // 10, "step": np.arange(n) % 10, "x": x, "y": np.where(rng.random(n) < 0.2, np.nan, y),
        "place": place, "action": rng.integers(0, 2, n), "behaviour_prob": 0.5, "reward": x + np.nan_to_num(y),
        "terminated": np.arange(n) % 10 == 9, **columns,
    })  # fmt: skip


class Seen:
    """A policy that keeps what it is given."""

    def __init__(self):
        self.observations = []

    def __call__(self, observations):
        self.observations.append(observations)
        probability = np.where(np.isnan(observations[:, 1]), 0.9, 0.3)
        return np.column_stack([probability, 1 - probability])


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_a_policy_sees_the_columns_with_their_gaps(values):
    data, policy = frame(), Seen()
    evaluation = vf.evaluate(data, policy=policy, values=values, columns=COLUMNS, missing="flag", discount=0.8)
    encoded = [data["x"], data["y"], data["place"] == "hall", data["place"] == "room"]
    raw = np.column_stack(encoded).astype(float)
    raw[data["place"].isna(), 2:] = np.nan
    given = {tuple(np.nan_to_num(row, nan=9.0)) for rows in policy.observations for row in rows}
    assert given <= {tuple(row) for row in np.nan_to_num(raw, nan=9.0)}
    assert any(row[1] == 9 for row in given)
    assert any(row[2] == 9 for row in given)
    if values == "state":
        expected = np.where(
            data["y"].isna(), np.where(data["action"] == 0, 0.9, 0.1), np.where(data["action"] == 0, 0.3, 0.7)
        )
        np.testing.assert_allclose(evaluation.log.ratio, expected / 0.5)


def probability_of(observations, actions):
    first = np.where(np.isnan(observations[:, 1]), 0.9, 0.3)
    return np.where(actions == 0, first, 1 - first)


def test_a_policy_that_takes_actions_sees_them_too():
    settings = {"columns": COLUMNS, "missing": "flag", "discount": 0.8}
    for values in ("state", "state-action"):
        one = vf.evaluate(frame(), policy=Seen(), values=values, **settings)
        other = vf.evaluate(frame(), policy=probability_of, values=values, **settings)
        assert other.policy_value.estimate == pytest.approx(one.policy_value.estimate, rel=1e-9)


def test_values_of_observations_with_gaps(tmp_path):
    evaluation = vf.evaluate(
        frame(), columns=COLUMNS, missing="flag", discount=0.8, policy=Seen(), values="state-action"
    )
    observations = [[0.5, np.nan, 1, 0], [0.5, 1.0, np.nan, np.nan]]
    median = frame()["y"].median()
    filled = [[0.5, median, 1, 0, 1, 0], [0.5, 1.0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(evaluation.value(observations), evaluation.value(filled))
    interval = evaluation.value_interval(observations)
    np.testing.assert_array_equal(interval, evaluation.value_interval(filled))
    with pytest.raises(ValueError, match=r"'x' is missing at row 0\. The log has no gap in this column"):
        evaluation.value([[np.nan, 0, 0, 1]])
    evaluation.save(tmp_path / "run.npz")
    loaded = vf.Evaluation.load(tmp_path / "run.npz", policy=Seen())
    np.testing.assert_allclose(loaded.value(observations), evaluation.value(observations), rtol=1e-9)
    assert (loaded.log.filling, loaded.log.continuity) == (evaluation.log.filling, evaluation.log.continuity)


def test_starts_with_gaps_are_filled():
    settings = {"columns": COLUMNS, "missing": "flag", "discount": 0.8, "features": "identity"}
    starts = np.array([[0.5, np.nan, 1, 0], [0.5, 1.0, np.nan, np.nan]])
    evaluation = vf.evaluate(frame(), starts=starts, **settings)
    assert evaluation.policy_value.estimate == pytest.approx(evaluation.value(starts).mean())


@pytest.mark.parametrize("values", ["state", "state-action"])
def test_a_log_in_parts_has_the_value_of_the_log_in_memory(values, tmp_path):
    frame(3000, place=0.0).drop(columns="place").to_parquet(tmp_path / "log.parquet")
    settings = {"columns": {"obs": ["x", "y"]}, "missing": "flag"}
    whole = vf.load(tmp_path / "log.parquet", **settings)
    for source in (vf.load(tmp_path / "log.parquet", memory="stream", limit=400_000, **settings),
                   vf.load(whole, memory="stream")):  # fmt: skip
        options = {"policy": Seen(), "values": values, "discount": 0.8, "starts": [[0.1, np.nan], [0.2, 0.3]]}
        options["features"] = "identity"
        assert len(source.shards) == 3 or source.source == "a log in memory"
        one, other = vf.evaluate(whole, **options), vf.evaluate(source, **options)
        assert other.policy_value.estimate == pytest.approx(one.policy_value.estimate, rel=1e-6)
        np.testing.assert_allclose(other.value([[0.3, np.nan]]), one.value([[0.3, np.nan]]), rtol=1e-6)
        assert sum("2 columns, 1 with gaps: y" in note for note in other.notes) == 1
        checks = {check.name: check.statistic for check in other.checks}
        assert checks["consecutive steps"] == 0


def test_select_fills_the_gaps():
    best = vf.select(
        frame(), {"features": ["identity", "kernel:landmarks=10"]}, columns=COLUMNS, missing="flag", discount=0.8
    )
    assert best.evaluations[0].log.filling is not None


@pytest.mark.parametrize(("columns", "additive"), [(8, 0.0), (9, 0.5)])
def test_indicators_do_not_count_for_the_additive_part_of_the_kernel(columns, additive):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, columns))
    rows[rng.random(rows.shape) < 0.1] = np.nan
    log = vf.Transitions.from_arrays(rows, np.ones(400), terminated=np.arange(400) % 4 == 3, missing="flag")
    assert log.observations.shape[1] == 2 * columns
    for features in ("auto", "kernel:landmarks=12"):
        assert make(features, log)[0].transformer.additive_ == additive
    assert make("kernel:landmarks=12,additive=0.25", log)[0].transformer.additive_ == 0.25


def test_indicators_do_not_count_in_parts_either(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 8))
    rows[rng.random(rows.shape) < 0.1] = np.nan
    columns = {f"obs_{k}": column for k, column in enumerate(rows.T)}
    columns |= {"reward": np.ones(4000), "terminated": np.arange(4000) % 8 == 7}
    pd.DataFrame(columns).to_parquet(tmp_path / "log.parquet")
    parts = vf.load(tmp_path / "log.parquet", memory="stream", missing="flag", limit=100_000)
    evaluation = vf.evaluate(parts, features="kernel:landmarks=12", discount=0.5)
    assert evaluation.sampled
    assert evaluation.features.transformer.additive_ == 0.0


@pytest.mark.parametrize("shape", ["all of a column", "first row", "one step"])
def test_unusual_shapes_are_evaluated(shape):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1 if shape == "one step" else 400, 2))
    if shape == "first row":
        rows[0] = np.nan
    else:
        rows[:, 1] = np.nan
    n = len(rows)
    settings = {"terminated": np.arange(n) % 4 == 3 if n > 1 else [1], "missing": "flag"}
    evaluation = vf.evaluate(vf.Transitions.from_arrays(rows, np.ones(n), **settings), discount=0.5)
    assert np.isfinite(evaluation.value([[0.0, np.nan]])).all()


def test_rare_gaps_move_the_features_as_much_as_common_ones():
    """The unit of an indicator is 1 for any share: its quantiles are equal where gaps are rare."""
    for share in (0.01, 0.3, 0.99):
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(1000, 2))
        rows[rng.random(1000) < share, 1] = np.nan
        log = vf.Transitions.from_arrays(rows, np.ones(1000), terminated=np.arange(1000) % 4 == 3, missing="flag")
        kernel = make("auto", log)[0].transformer
        assert (kernel.high_ - kernel.low_)[2] == pytest.approx(4.0)


def test_the_result_does_not_depend_on_what_stood_in_the_gaps():
    """Medians shift with the column, so the value of a shifted column is the same."""
    settings = {"columns": COLUMNS, "missing": "flag", "discount": 0.8}
    one, shifted = vf.evaluate(frame(), **settings), vf.evaluate(frame().assign(y=frame()["y"] + 8.0), **settings)
    assert shifted.policy_value.estimate == pytest.approx(one.policy_value.estimate, rel=1e-6)
    gap, moved = one.log.filling.gaps[0], shifted.log.filling.gaps[0]
    assert dataclasses.replace(gap, fill=gap.fill + 8.0).fill == pytest.approx(moved.fill)
