"""JSON Lines: steps and batches, missing keys, nested objects, and every malformed line one sentence."""

import dataclasses
import json

import numpy as np
import pytest

import valuefit as vf
from helpers.log_files import assert_same_log, expected, json_steps, rllib, steps
from valuefit.data.columns import match_columns
from valuefit.data.readers import json_lines

COLUMNS = steps()
STEP = '{"obs": [1.5, 2], "reward": 1, "done": 0}\n'


def load_text(text, folder, name="log.jsonl", **settings):
    (folder / name).write_text(text)
    return vf.load(folder / name, **settings)


@pytest.mark.parametrize("steps_per_piece", [1, 5, 4096])
def test_steps_and_batches_give_the_same_log_in_pieces_of_any_size(steps_per_piece, tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "STEPS_PER_PIECE", steps_per_piece)
    assert_same_log(vf.load(json_steps(COLUMNS, tmp_path / "log.jsonl")), expected())
    assert_same_log(vf.load(rllib(COLUMNS, tmp_path, size=7)), expected())


def test_a_folder_of_rllib_is_one_log_in_which_episodes_continue_across_workers_files(tmp_path):
    half = {name: values[:18] for name, values in COLUMNS.items()}
    rest = {name: values[18:] for name, values in COLUMNS.items()}  # begins inside an episode
    for number, part in enumerate((half, rest)):
        path = rllib(part, tmp_path, name=f"output-2024-05-01_12-00-00_worker-0_{number}.json")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:  # RLlib has time limits only in dones, and old versions no step numbers
            line["dones"] = [a or b for a, b in zip(line.pop("terminateds"), line.pop("truncateds"), strict=True)]
            del line["t"]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = vf.load(tmp_path)
    assert_same_log(log, vf.load({**COLUMNS, "terminated": COLUMNS["terminated"] | COLUMNS["truncated"]}, columns={
        "truncated": None}))  # fmt: skip
    assert any("'dones' is treated as terminated" in note for note in log.notes)


def test_episode_ids_of_newer_versions_of_rllib_are_text(tmp_path):
    path = rllib(COLUMNS, tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["eps_id"] = [f"{number:032x}" for number in line["eps_id"]]
    log = load_text("".join(json.dumps(line) + "\n" for line in lines), tmp_path, "output.json")
    assert_same_log(dataclasses.replace(log, episode_names=None), expected())
    assert log.episode_names[3] == f"{3:032x}"


def test_the_logarithm_alone_gives_the_behaviour_probability(tmp_path):
    path = rllib(COLUMNS, tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    text = "".join(json.dumps({k: v for k, v in line.items() if k != "action_prob"}) + "\n" for line in lines)
    log = load_text(text, tmp_path, "output.json")
    np.testing.assert_allclose(log.behaviour_prob, COLUMNS["behaviour_prob"], rtol=1e-14)


def test_nested_observations_are_named_by_their_path(tmp_path):
    lines = [
        {"obs": {"place": [0.5, k], "speed": 2.0 * k}, "reward": k, "done": k == 4, "infos": {"k": k}} for k in range(5)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    log = load_text(text, tmp_path, columns={"obs": ["obs/place", "obs/speed"]})
    np.testing.assert_array_equal(log.observations[log.now], [[0.5, k, 2.0 * k] for k in range(5)])


def test_a_key_that_appears_later_is_missing_before(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "STEPS_PER_PIECE", 2)
    lines = [{"episode": 3, "obs": [float(k)], "reward": 1, "done": k == 4} for k in range(5)]
    lines[4]["next_obs"] = [9.0]
    with pytest.raises(ValueError, match=r"next_obs is missing at step 0 of .*log.jsonl, in the middle of an episode"):
        load_text("".join(json.dumps(line) + "\n" for line in lines), tmp_path)
    for line in lines[:4]:
        line["next_obs"] = [line["obs"][0] + 1]
    lines[4]["next_obs"] = None
    log = load_text("\n\n".join(json.dumps(line) for line in lines), tmp_path)
    np.testing.assert_array_equal(log.observations.ravel(), np.arange(5.0))
    assert log.next.tolist() == [1, 2, 3, 4, -1]


def test_integers_stay_exact(tmp_path):
    large = [2**60 + 1, 2**60 + 4, 2**63 - 1]
    lines = [{"obs": state, "reward": 1, "done": True} for state in large]
    log = load_text("".join(json.dumps(line) + "\n" for line in lines), tmp_path)
    assert log.observations.tolist() == large


def test_missing_integers_stay_exact(tmp_path):
    large = 2**60 + 1
    lines = [
        {"episode": 0, "obs": large, "next_obs": large + 3, "reward": 1, "done": False},
        {"episode": 0, "obs": large + 3, "next_obs": None, "reward": 1, "done": True},
    ]
    log = load_text("".join(json.dumps(line) + "\n" for line in lines), tmp_path)
    assert log.observations.tolist() == [large, large + 3]


def test_a_byte_order_mark_is_accepted(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"\xef\xbb\xbf" + STEP.replace("0}", "1}").encode())
    assert len(vf.load(tmp_path / "log.jsonl")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: it has no line with a step"),
        ("\n \n", "is empty: it has no line with a step"),
        ("[1, 2]\n", r"Line 1 of .* is not a JSON object \(it is a list\). valuefit reads JSON Lines"),
        ("{\n", r"Line 1 of .* is not a JSON object"),
        (STEP + '{"obs": [1', "Line 2 of .* is not a JSON object"),
        ("[" * 100_000, r"Line 1 of .* is not a JSON object \(maximum recursion depth"),
        ('{"reward": 1, "reward": 2}', r"not a JSON object \(a key occurs twice\)"),
        ('{"obs": 1, "reward": ' + "9" * 5000 + "}", "is not a JSON object .*4300 digits"),
        ("\x00\x01\x02", "Line 1 of .* is not a JSON object"),
        ('{"type": "MultiAgentBatch", "count": 1, "policy_batches": {}}', "is a batch of several agents. Write"),
        ('{"obs": [1]}', "has no column reward"),
        (STEP + STEP.replace("[1.5, 2]", "[1.5]"), r"'obs' of .* at line 2: \[1.5\]. Give every step a number"),
        (STEP + STEP.replace("[1.5, 2]", '"home"'), r"'obs' of .* at line 2: 'home'. Give every step a number"),
        (STEP + STEP.replace("2]", '"2"]'), r"at line 2: \[1.5, '2'\]"),
        (STEP + STEP.replace("2]", "{}]"), r"at line 2: \[1.5, \{\}\]"),
        (STEP + STEP.replace("2]", "1152921504606846977]"), "not exact in floating point, at line 2"),
        (STEP + STEP.replace("2]", "9" * 400 + "]"), "not exact in floating point, at line 2"),
        (STEP + STEP.replace("2]", "NaN]"), r"obs\[1\] 50%; the first is at row 1"),
        (STEP + STEP.replace("2]", "null]"), r"obs\[1\] 50%; the first is at row 1"),
        (STEP + STEP.replace('"reward": 1', '"reward": null'), "reward"),
        ('{"obs": [1, 2], "rewards": [1, 2], "dones": [false]}', "'dones' is a list of 1 in line 1 .*a list of 2"),
        ('{"obs": [1, 2], "rewards": [1, 2], "dones": true}', "'dones' is a bool in line 1 .*'rewards' is a list of 2"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_one_sentence(text, message, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        load_text(text, tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_the_size_of_the_arrays_is_limited(tmp_path):
    with pytest.raises(ValueError, match=r"more than the limit of 29.3 KiB"):
        load_text(STEP * 1000, tmp_path, limit=30_000)
    with pytest.raises(ValueError, match=r"Line 1 of .* is longer than 65,536 bytes, too long for the memory limit"):
        load_text('{"obs": [' + "1, " * 30_000 + '1], "reward": 1, "done": 1}', tmp_path, limit=30_000)


def test_keys_that_belong_to_no_field_are_not_matched_again(tmp_path, monkeypatch):
    """A file with other keys on every line took the square of its lines."""
    calls = []

    def counted(names, columns, where):
        calls.append(len(names))
        return match_columns(names, columns, where)

    monkeypatch.setattr(json_lines, "match_columns", counted)
    count = 2 * json_lines.STEPS_PER_PIECE
    text = "".join(f'{{"obs": [{k}], "reward": 1, "done": {int(k % 8 == 7)}, "note_{k}": "x"}}\n' for k in range(count))
    assert len(load_text(text, tmp_path)) == count
    assert calls == [4]


def test_a_key_that_matters_may_come_in_any_line(tmp_path):
    count = 2 * json_lines.STEPS_PER_PIECE + 5
    lines = [{"obs": [k], "reward": k, "terminated": int(k + 1 < count)} for k in range(count)]
    lines[-1]["next_obs"] = [-3]
    log = load_text("".join(f"{json.dumps(line)}\n" for line in lines), tmp_path)
    assert len(log) == count
    assert log.observations[log.next[-1]] == -3
    lines[-1]["observation"] = [1]
    with pytest.raises(ValueError, match="has 'obs' and 'observation', which both match obs"):
        load_text("".join(f"{json.dumps(line)}\n" for line in lines), tmp_path)
