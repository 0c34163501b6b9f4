"""The command line and `vf.evaluate` give the same number for one log in every format."""

import os

import numpy as np
import pandas as pd
import pytest

import valuefit as vf
from helpers.command_line import facts, piped, refused, run, strict
from helpers.log_files import WRITERS, assert_same_log, d4rl, expected, flat, minari_dataset, parquet_parts, steps
from helpers.streamed import log_with_actions

LENGTHS = (40, 31, 35, 50, 38, 44, 29, 41, 33, 47)


@pytest.fixture(scope="module")
def columns():
    return steps(lengths=LENGTHS)


def agree(source, answer, **settings):
    """Assert that `answer`, the output of the command line, equals that of `vf.evaluate`; returns the evaluation."""
    evaluation = vf.evaluate(source, **settings)
    value = evaluation.policy_value
    assert abs(answer["policy_value"]["estimate"] - value.estimate) <= 1e-8
    assert abs(answer["policy_value"]["standard_error"] - value.standard_error) <= 1e-8
    assert np.allclose(answer["policy_value"]["interval"], value.interval, rtol=0, atol=1e-8)
    return evaluation


@pytest.mark.parametrize(
    "kind", ["csv", "json lines", "rllib", "parquet", "parquet with lists", "parquet parts", "npz", "d4rl", "minari"]
)
def test_every_format_gives_the_same_number_as_arrays(kind, columns, tmp_path):
    path = WRITERS[kind](columns, tmp_path)
    evaluation = agree(str(path), facts("evaluate", path))
    arrays = vf.evaluate(columns)
    assert abs(evaluation.policy_value.estimate - arrays.policy_value.estimate) <= 1e-8


def test_a_parquet_file_in_a_separate_process(columns, tmp_path):
    path = WRITERS["parquet"](columns, tmp_path)
    done = piped("evaluate", path, "--json", "--discount", 0.9, "--features", "fourier:order=1", "--trace", 0.5)
    assert done.returncode == 0, done.stderr
    agree(str(path), strict(done.stdout), discount=0.9, features="fourier:order=1", trace=0.5)


def test_a_csv_without_truncation_flags(columns, tmp_path):
    """The last step of a truncated episode has no known next observation: it is dropped, with a note."""
    table = pd.DataFrame(flat(columns)).drop(columns=["truncated", "next_obs_0", "next_obs_1", "next_obs_2"])
    table.to_csv(tmp_path / "log.csv", index=False)
    answer = facts("evaluate", tmp_path / "log.csv")
    evaluation = agree(str(tmp_path / "log.csv"), answer)
    assert len(evaluation.log) == sum(LENGTHS) - len(LENGTHS) // 2
    kept = ~columns["truncated"]
    by_hand = vf.Transitions.from_arrays(
        columns["obs"][kept], columns["reward"][kept], terminated=columns["terminated"][kept],
        episode=columns["episode"][kept], next_observation=columns["next_obs"][kept],
    )  # fmt: skip
    expected = vf.evaluate(by_hand, features=evaluation.features).policy_value.estimate
    assert abs(answer["policy_value"]["estimate"] - expected) <= 1e-8
    check = next(check for check in answer["checks"] if check["name"] == "last steps")
    assert check["message"].startswith("The last step of 5 episodes")


def test_a_d4rl_file_without_timeouts(columns, tmp_path):
    path = d4rl(columns, tmp_path / "log.hdf5", leave_out=("next_observations",))
    agree(str(path), facts("evaluate", path))


def test_a_minari_dataset_by_its_id(columns, tmp_path, monkeypatch):
    folder = minari_dataset(columns, tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    answer = facts("evaluate", "minari:lab/walk-v0")
    agree("minari:lab/walk-v0", answer)
    assert answer["policy_value"] == facts("evaluate", folder)["policy_value"]


def test_columns_with_other_names(columns, tmp_path):
    table = pd.DataFrame(flat(columns)).drop(columns=["next_obs_0", "next_obs_1", "next_obs_2"])
    renamed = {"obs_0": "x", "obs_1": "[/]", "obs_2": "<script>", "reward": "r"}
    table.rename(columns=renamed).to_csv(tmp_path / "log.csv", index=False)
    words = ("--columns", "obs=x,[/],<script>", "--columns", "reward=r", "--columns", "action=")
    answer = facts("evaluate", tmp_path / "log.csv", *words)
    mapping = {"obs": ["x", "[/]", "<script>"], "reward": "r", "action": None}
    assert agree(str(tmp_path / "log.csv"), answer, columns=mapping).log.action is None


@pytest.mark.parametrize("target", ["log.parquet", "log.npz", "log"])
def test_a_converted_log_gives_the_same_evaluation(target, columns, tmp_path):
    source = WRITERS["d4rl"](columns, tmp_path)
    done = run("convert", source, tmp_path / target)
    assert done.exit_code == 0, done.stderr
    assert f"Written: {tmp_path / target} ({sum(LENGTHS)} steps in 10 episodes)" in done.stdout
    assert facts("evaluate", tmp_path / target)["policy_value"] == facts("evaluate", source)["policy_value"]
    message = "already exists. Choose another name, or overwrite it with --force."
    assert message in refused("convert", source, tmp_path / target)
    assert run("convert", source, tmp_path / target, "--force").exit_code == 0


def test_several_files_are_one_log(columns, tmp_path):
    parts = sorted(parquet_parts(columns, tmp_path, size=40).glob("*.parquet"))  # as text, as a shell expands a pattern
    evaluation = agree([str(part) for part in parts], facts("evaluate", *parts))
    assert evaluation.policy_value.estimate == vf.evaluate(columns).policy_value.estimate
    pattern = tmp_path / "parts" / "*.parquet"
    assert facts("evaluate", pattern)["policy_value"] == facts("evaluate", *parts)["policy_value"]
    done = run("convert", *parts, tmp_path / "log.npz")
    assert "Note: Read 10 files in the order of their names" in done.output
    assert_same_log(vf.load(tmp_path / "log.npz"), expected(columns))


def test_a_folder_that_is_being_replaced_is_not_refused_as_unreadable(columns, tmp_path, monkeypatch):
    pd.DataFrame(flat(columns)).to_csv(tmp_path / "log.csv", index=False)
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # as between the two renames
    assert run("convert", tmp_path / "log.csv", tmp_path / "log", "--force").exit_code == 0


def test_convert_prints_the_warnings_of_the_reader_and_a_folder_keeps_them(tmp_path):
    ends = (np.arange(300) % 20 == 19).astype(int)
    table = pd.DataFrame({"x": np.arange(300) % 20 / 20, "weather": ["sun", "rain"] * 150, "reward": 1.0, "done": ends})
    table.to_csv(tmp_path / "log.csv", index=False)
    words = ("--columns", "obs=x,weather", "--columns", "categorical=x,weather")
    done = run("convert", tmp_path / "log.csv", tmp_path / "log", *words)
    assert "Warning: 15 of the 15 episodes that 'done' ends have 20 steps" in done.output
    answer = facts("evaluate", tmp_path / "log")
    assert {"time limit": "warn"}.items() <= {check["name"]: check["outcome"] for check in answer["checks"]}.items()
    assert any("looks like a time limit" in reason for reason in answer["verdict"]["reasons"])
    assert vf.load(tmp_path / "log").names[-2:] == ("weather=rain", "weather=sun")


def test_convert_prints_the_notes_of_the_reader(columns, tmp_path):
    table = pd.DataFrame(flat(columns)).drop(columns=["truncated", "next_obs_0", "next_obs_1", "next_obs_2"])
    table.rename(columns={"reward": "r"}).to_csv(tmp_path / "log.csv", index=False)
    done = run("convert", tmp_path / "log.csv", tmp_path / "log", "--columns", "reward=r")
    assert done.exit_code == 0, done.stderr
    assert "Note: The last step of 5 episodes" in done.stdout
    assert len(vf.load(tmp_path / "log")) == sum(LENGTHS) - 5


# ---- policies and starts --------------------------------------------------------------------------------------


@pytest.fixture
def discrete(tmp_path, monkeypatch):
    """A log over four states; one policy as a module, as a table and as probabilities by step."""
    rng = np.random.default_rng(3)
    n = 600
    state, action = rng.integers(0, 4, n), rng.integers(0, 2, n)
    table = np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1], [0.4, 0.6]])
    log = {
        "obs": state, "action": action, "reward": rng.normal(size=n) + action, "episode": np.arange(n) // 12,
        "terminated": np.arange(n) % 12 == 11, "behaviour_prob": np.full(n, 0.5),
    }  # fmt: skip
    pd.DataFrame(log).to_csv(tmp_path / "log.csv", index=False)
    np.save(tmp_path / "table.npy", table)
    np.savetxt(tmp_path / "steps.csv", table[state, action])
    (tmp_path / "lab_policy.py").write_text(
        f"import numpy as np\n\ndef probabilities(states):\n    return np.array({table.tolist()})[states]\n"
    )
    monkeypatch.chdir(tmp_path)
    return table


def test_a_policy_as_module_table_and_numbers_by_step(discrete):
    table = discrete
    expected = vf.evaluate("log.csv", policy=table).policy_value
    for policy in ("lab_policy:probabilities", "table.npy", "steps.csv"):
        answer = facts("evaluate", "log.csv", "--policy", policy)
        assert abs(answer["policy_value"]["estimate"] - expected.estimate) <= 1e-8
        assert answer["policy_value"]["effective_sample_size"] == expected.effective_sample_size
    other = facts("evaluate", "log.csv", "--policy", "table.npy", "--values", "state-action", "--columns",
                  "behaviour_prob=")  # fmt: skip
    agree("log.csv", other, policy=table, values="state-action", columns={"behaviour_prob": None})
    assert other["policy_value"]["estimate"] != pytest.approx(expected.estimate, abs=1e-6)


def test_starts_from_a_file(discrete):
    (starts := pd.DataFrame({"obs": [0, 3, 3]})).to_csv("starts.csv", index=False)
    answer = facts("evaluate", "log.csv", "--starts", "starts.csv")
    assert answer["policy_value"]["starts"] == 3
    agree("log.csv", answer, starts=starts["obs"].to_numpy())


def test_a_log_that_is_streamed_has_the_same_value(tmp_path):
    vf.save(log_with_actions(20), tmp_path / "log.parquet")
    options = "evaluate", str(tmp_path / "log.parquet"), "--features", "identity", "--discount", "0.9"
    loaded, streamed = facts(*options), facts(*options, "--memory", "stream")
    assert streamed["policy_value"]["estimate"] == pytest.approx(loaded["policy_value"]["estimate"], rel=1e-6)
    assert streamed["policy_value"]["standard_error"] == pytest.approx(
        loaded["policy_value"]["standard_error"], rel=1e-6
    )
    assert streamed["steps"] == loaded["steps"]
    assert any("was not loaded" in note for note in streamed["notes"])


def test_a_limit_bounds_the_parts_of_a_log_and_what_is_converted(tmp_path):
    vf.save(log_with_actions(200), tmp_path / "log.parquet")
    options = "evaluate", str(tmp_path / "log.parquet"), "--features", "identity", "--memory", "stream"
    for limit, parts in (("100kB", 7), ("1GB", 1)):
        assert f"its {parts} shards" in " ".join(facts(*options, "--limit", limit)["notes"])
    words = "convert", tmp_path / "log.parquet", tmp_path / "log.npz", "--limit"
    assert "more than the limit of 1.0 KiB" in refused(*words, "1KiB")
    assert run(*words, "1GB").exit_code == 0


def test_a_scheduler_that_does_not_answer_is_named(tmp_path):
    vf.save(log_with_actions(5), tmp_path / "log.parquet")
    words = "evaluate", tmp_path / "log.parquet", "--scheduler", "nowhere://1"
    assert "No Dask scheduler answers at 'nowhere://1'" in refused(*words)


@pytest.fixture
def gaps(columns, tmp_path):
    """A CSV file in which every seventh value of obs_1 is missing, and a policy in a file."""
    table = pd.DataFrame(flat(columns))
    known = np.arange(len(table)) % 7 != 3
    for name in ("obs_1", "next_obs_1"):
        follows = known if name == "obs_1" else np.append(known[1:], True)
        table[name] = table[name].where(follows)
    table.to_csv(tmp_path / "gaps.csv", index=False)
    np.savetxt(tmp_path / "target.csv", np.full(len(table), 0.4))
    return tmp_path / "gaps.csv"


def test_gaps_are_refused_by_column_and_flagged_by_an_option(gaps, tmp_path):
    message = refused("evaluate", gaps)
    assert "The observations have 3 columns, 1 with gaps: obs_1 14%; the first is at row 3 of" in message
    assert "Load the log with --missing flag" in message
    evaluation = agree(str(gaps), facts("evaluate", gaps, "--missing", "flag"), missing="flag")
    assert evaluation.log.names[-1] == "obs_1 missing"
    (tmp_path / "run.toml").write_text('log = "gaps.csv"\nmissing = "flag"\n')
    agree(str(gaps), facts("evaluate", "--config", tmp_path / "run.toml"), missing="flag")
    one = facts("compare", gaps, "--missing", "flag", "--policy", tmp_path / "target.csv")
    assert len(one["values"]) == 2


def test_converted_logs_keep_flags_and_counts(gaps, tmp_path):
    for name in ("log", "log.parquet", "log.npz"):
        done = run("convert", gaps, tmp_path / name, "--missing", "flag")
        assert "Note: Filled gaps in the observations, 3 columns, 1 with gaps: obs_1 14%" in done.stdout
        agree(str(gaps), facts("evaluate", tmp_path / name), missing="flag")
        assert vf.load(tmp_path / name).filling == vf.load(gaps, missing="flag").filling
