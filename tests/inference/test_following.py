"""For how many steps a log follows the target policy: against plain loops; in summary, JSON, file and report."""

from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.streamed import in_shards
from valuefit.inference.following import MIN_FOLLOWING_EPISODES, Following


def log_of(lengths, seed=0, terminated=0.5):
    """A log of a coin's actions on four states; a share of the episodes terminates, the others are cut."""
    rng = np.random.default_rng(seed)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    last = np.append(np.diff(episode) != 0, True)
    ends = last & (rng.random(len(lengths)) < terminated)[episode]
    n = len(episode)
    return vf.Transitions.from_arrays(
        rng.integers(4, size=n), rng.normal(size=n), episode=episode, terminated=ends, truncated=last & ~ends,
        action=rng.integers(2, size=n), behaviour_prob=np.full(n, 0.5),
        next_observation=rng.integers(4, size=n),
    )  # fmt: skip


def table(right):
    return np.tile([1 - right, right], (4, 1))


def effective_numbers(log, right):
    """The effective number of episodes that follow the policy for 1, 2, ... steps, in plain loops."""
    longest = max(int((log.episode == one).sum()) for one in log.episodes)
    numbers = []
    for k in range(1, longest + 1):
        weights = []
        for one in log.episodes:
            steps = np.flatnonzero(log.episode == one)
            if len(steps) >= k or log.terminated[steps[-1]]:
                taken = log.action[steps[:k]]
                weights.append(float(np.prod(np.where(taken == 1, right, 1 - right) / 0.5)))
        total = sum(weights)
        numbers.append(total**2 / sum(weight**2 for weight in weights) if total else 0.0)
    return numbers


@pytest.mark.parametrize(("right", "terminated"), [(0.8, 0.5), (0.8, 0.0), (0.6, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("values", ["state", "state-action"])
def test_followed_steps_are_those_of_plain_loops(right, terminated, values):
    log = log_of(np.random.default_rng(1).integers(1, 25, 60), terminated=terminated)
    numbers = effective_numbers(log, right)
    few = [k for k, number in enumerate(numbers) if number < MIN_FOLLOWING_EPISODES]
    expected = Following(few[0], False) if few else Following(len(numbers), True)
    assert vf.evaluate(log, policy=table(right), values=values, discount=0.9).follows == expected
    assert bool(few) == (right > 0.6)  # each outcome occurs


def test_a_cut_episode_counts_no_longer_and_a_terminated_one_keeps_its_weight():
    lengths = [5] * 15 + [20] * 8
    for share, follows in [(0.0, Following(5, False)), (1.0, Following(20, True))]:
        log = log_of(lengths, terminated=share)
        assert vf.evaluate(log, policy=table(0.5), discount=0.9).follows == follows


def test_few_episodes_follow_for_no_step():
    evaluation = vf.evaluate(log_of([30] * 9), policy=table(0.5), discount=0.9)
    assert evaluation.follows == Following(0, False)
    assert "follows the target policy for 0 steps" in " ".join(evaluation.summary().split())


def test_on_policy_there_is_nothing_to_follow():
    evaluation = vf.evaluate(log_of([10] * 20), discount=0.9)
    assert evaluation.follows is None
    assert evaluation.to_dict()["follows"] is None
    assert "follow" not in evaluation.summary()


@pytest.mark.parametrize(
    ("right", "known", "sentence", "facts"),
    [
        (0.9, True, "follows the target policy for 2 steps; beyond that fewer than 10", (2, False)),
        (0.5, True, "follows the target policy to the end of the episodes", (30, True)),
        (0.9, False, "not known for how many steps", (None, False)),
    ],
)
def test_summary_json_file_and_report_say_it(right, known, sentence, facts, tmp_path):
    log = log_of([30] * 40)
    log = log if known else replace(log, behaviour_prob=None)
    evaluation = vf.evaluate(log, policy=table(right), values="state-action", discount=0.99)
    assert sentence in " ".join(evaluation.summary().split())
    assert evaluation.to_dict()["follows"] == {"steps": facts[0], "to_the_end": facts[1], "horizon": 100}
    loaded = vf.Evaluation.load(evaluation.save(tmp_path / "evaluation.npz"))
    assert loaded.summary() == evaluation.summary()
    assert sentence in " ".join(evaluation.report(tmp_path / "report.html").read_text().split())


def test_with_discount_1_the_horizon_is_infinite():
    log = log_of([30] * 40, terminated=1.0)
    evaluation = vf.evaluate(log, policy=table(0.9), discount=1.0)
    assert evaluation.to_dict()["follows"]["horizon"] is None
    assert "The horizon of the discount is infinite." in " ".join(evaluation.summary().split())


def test_of_a_log_in_shards_it_is_that_of_the_checked_episodes(tmp_path):
    log = log_of([30] * 40)
    settings = {"policy": table(0.9), "discount": 0.9}
    streamed = vf.evaluate(in_shards(log, tmp_path, "parquet"), **settings)
    assert streamed.follows == vf.evaluate(log, **settings).follows
    assert not streamed.follows.to_the_end
