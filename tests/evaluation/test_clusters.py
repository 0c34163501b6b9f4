"""Groups of episodes: errors clustered by them, against brute force; every format keeps them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import valuefit as vf
from helpers.command_line import facts
from helpers.small_mdp import STATES, SmallMDP

MDP = SmallMDP(off_policy=True, seed=1)
POLICY = np.tile([0.6, 0.4], (STATES, 1))
SETTINGS = [
    {"policy": POLICY},
    {"policy": POLICY, "values": "state-action"},
    {"policy": POLICY, "trace": 0.5, "ridge": 0.1},
]
IDS = ["ratios", "state-action", "trace and ridge"]


def with_patients(episodes=30, patients=10):
    """A log whose episodes belong to patients in turns, so that no two of a patient are next to each other."""
    log = MDP.log(episodes, seed=0, propensities=True)
    return replace(log, cluster=log.episode % patients)


def evaluated(log, **settings):
    return vf.evaluate(log, **{"features": MDP.rows, "discount": 0.9, "solver": "lstd", "tol": 1e-12, **settings})


@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
def test_the_jackknife_leaves_out_whole_clusters(settings):
    log = with_patients()

    def estimate(steps):
        return evaluated(steps, **settings).policy_value.estimate

    every = estimate(log)
    changes = np.array([estimate(log[log.cluster != patient]) - every for patient in range(10)])
    value = evaluated(log, **settings).policy_value
    assert value.standard_error == pytest.approx(np.sqrt(9 / 10 * changes @ changes), rel=1e-8)
    assert 1 < value.effective_episodes <= 10


def test_the_sandwich_sums_influences_by_cluster():
    """With one feature and a fixed start the influence is known: u_t delta_t / (n A)."""
    log = with_patients()
    settings = {"policy": POLICY, "features": lambda state: np.ones((len(state), 1)), "starts": np.array([0])}
    value = evaluated(log, interval="cr1", **settings)
    later = np.where(log.terminated, 0.0, 0.9)
    ratio = POLICY[0][log.action] / log.behaviour_prob
    theta = (ratio @ log.reward) / (ratio @ (1 - later))
    parts = np.bincount(log.cluster, ratio * (log.reward - (1 - later) * theta)) / (ratio @ (1 - later))
    assert value.policy_value.estimate == pytest.approx(theta)
    assert value.policy_value.standard_error == pytest.approx(np.sqrt(10 / 9 * parts @ parts), rel=1e-9)


def test_dependent_episodes_have_larger_errors():
    """Every patient has six equal episodes: the errors are those of one of them."""
    one = MDP.log(10, seed=0, propensities=True)
    order = np.tile(np.arange(len(one)), 6)
    copy = np.repeat(np.arange(6), len(one))
    log = replace(
        one[order], episode=one.episode[order] + 10 * copy, begins=np.tile(one.begins, 6), cluster=one.episode[order]
    )
    alone, grouped, ignored = (
        evaluated(steps, policy=POLICY).policy_value for steps in (one, log, replace(log, cluster=None))
    )
    assert grouped.estimate == pytest.approx(alone.estimate)
    assert grouped.standard_error == pytest.approx(alone.standard_error)
    assert grouped.interval == pytest.approx(alone.interval)
    assert ignored.standard_error < 0.5 * alone.standard_error


def test_clusters_are_never_cut_into_blocks():
    log = MDP.log(40, seed=0, propensities=True)
    unequal = replace(log, cluster=np.minimum(log.episode, 3))
    evaluation = evaluated(unequal)
    assert evaluation.policy_value.effective_episodes < 4
    assert "over 4 clusters of episodes, which count as" in " ".join(evaluation.notes)


def test_differences_are_paired_by_cluster():
    log = with_patients()
    second = np.tile([0.3, 0.7], (STATES, 1))

    def difference(steps):
        return (
            evaluated(steps, policy=POLICY).policy_value.estimate
            - evaluated(steps, policy=second, values="state-action").policy_value.estimate
        )

    every = difference(log)
    changes = np.array([difference(log[log.cluster != patient]) - every for patient in range(10)])
    a, b = evaluated(log, policy=POLICY), evaluated(log, policy=second, values="state-action")
    assert vf.compare(a, b).standard_error == pytest.approx(np.sqrt(9 / 10 * changes @ changes), rel=1e-8)
    with pytest.raises(ValueError, match="The evaluations have different clusters"):
        vf.compare(a, evaluated(replace(log, cluster=None), policy=second))


@pytest.mark.parametrize("name", ["log", "log.npz", "log.parquet"])
def test_saved_logs_keep_their_clusters(name, tmp_path):
    log = with_patients()
    loaded = vf.load(vf.save(log, tmp_path / name))
    np.testing.assert_array_equal(loaded.cluster, log.cluster)
    np.testing.assert_array_equal(loaded[5:40].cluster, log.cluster[5:40])


def test_saved_evaluations_keep_their_clusters(tmp_path):
    evaluation = evaluated(with_patients(), features="one-hot", policy=POLICY)
    loaded = vf.Evaluation.load(evaluation.save(tmp_path / "saved.npz"))
    np.testing.assert_array_equal(loaded.log.cluster, evaluation.log.cluster)
    assert loaded.weights == evaluation.weights


def table():
    log = with_patients()
    columns = {
        "obs": log.observations[log.now], "reward": log.reward, "terminated": log.terminated, "episode": log.episode,
        "truncated": log.truncated, "action": log.action, "patient": [f"patient {one}" for one in log.cluster],
        "next_obs": log.observations[log.next],
    }  # fmt: skip
    return pd.DataFrame(columns)


def test_a_column_of_text_is_given_by_its_name(tmp_path):
    frame, options = table(), {"features": "one-hot", "discount": 0.9}
    expected = vf.evaluate(frame, cluster="patient", **options)
    np.testing.assert_array_equal(expected.log.cluster, with_patients().cluster)
    for other in (
        vf.evaluate(frame, columns={"cluster": "patient"}, **options),
        vf.evaluate(vf.load(frame), cluster=frame["patient"], **options),
        vf.evaluate(frame.rename(columns={"patient": "cluster"}), **options),
    ):
        assert other.policy_value == expected.policy_value
    frame.to_csv(tmp_path / "log.csv", index=False)
    words = tmp_path / "log.csv", "--cluster", "patient", "--features", "one-hot", "--discount", "0.9"
    assert facts("evaluate", *words)["policy_value"]["interval"] == pytest.approx(expected.policy_value.interval)


def test_wrong_clusters_are_refused():
    log, frame = replace(with_patients(), cluster=None), table()
    steps, divided = np.arange(len(log)), with_patients().cluster.copy()
    divided[1] = 7
    for cluster, message in (
        ("patient", r"cluster is 'patient', the name of a column, but the log is already loaded"),
        (
            divided,
            r"Episode 0 belongs to two clusters: another begins at step 1\. A cluster is a group of whole episodes",
        ),
        (steps[:-1], "cluster has .* entries but the log has .* steps"),
        (np.full(len(log), 3), "All episodes belong to one cluster, which gives no standard error"),
        (np.full(len(log), np.nan), "cluster"),
        (np.array([None, *frame["patient"][1:]], object), "cluster is missing at step 0"),
        (np.array(["", *frame["patient"][1:]], object), "cluster is missing at step 0"),
        (np.ma.masked_array(with_patients().cluster, steps == 2), "cluster is missing at step 2"),
        ([*steps[:-1], [1, 2]], "cluster cannot be read as an array"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluated(log, cluster=cluster)
    with pytest.raises(ValueError, match="has no column 'person', which columns gives for cluster"):
        vf.evaluate(frame, cluster="person")
    frame.loc[3, "patient"] = None
    with pytest.raises(ValueError, match="cluster is missing or infinite at row 3"):
        vf.evaluate(frame, cluster="patient")
