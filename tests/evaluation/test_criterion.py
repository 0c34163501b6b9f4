"""The criteria of held-out episodes: against plain loops, unbiased, with the standard errors of the jackknife."""

import numpy as np
import pytest

import valuefit as vf
from valuefit.evaluation.criterion import HeldOutMoments, Score, SquaredReturns, criterion_of, mean_score, on_policy

DISCOUNT = 0.9


def log_of(episodes, seed=0, ratios=True):
    """Episodes of 3 to 8 steps with two numbers per observation; every second one terminates."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 9, episodes)
    n, last = int(lengths.sum()), np.cumsum(lengths) - 1
    terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
    terminated[last[::2]], truncated[last[1::2]] = True, True
    return vf.Transitions.from_arrays(
        rng.normal(size=(n, 2)), rng.normal(size=n), terminated=terminated, truncated=truncated,
        episode=np.repeat(np.arange(episodes), lengths), next_observation=rng.normal(size=(n, 2)),
        action=rng.integers(0, 2, n), ratio=rng.uniform(0.2, 1.8, n) if ratios else None,
    )  # fmt: skip


def test_returns_are_those_of_plain_loops():
    log = log_of(6, ratios=False)[np.r_[0:9, 12:30]]  # a gap ends a return
    delta = np.random.default_rng(1).normal(size=len(log))
    errors = np.zeros(len(log))
    for t in range(len(log)):
        for k in range(t, len(log)):
            if k > t and log.begins[k]:
                break
            errors[t] += DISCOUNT ** (k - t) * delta[k]
    score = SquaredReturns(log, DISCOUNT).score(delta)
    assert score.value == pytest.approx(np.mean(errors**2), rel=1e-12)
    assert score.parts.sum() == pytest.approx(0, abs=1e-12)


def test_returns_compare_values_with_returns():
    steps, rng = 40, np.random.default_rng(2)
    last, terminated = np.arange(steps) % 8 == 7, np.arange(steps) % 16 == 15
    log = vf.Transitions.from_arrays(
        rng.normal(size=(steps, 2)), rng.normal(size=steps), terminated=terminated, truncated=last & ~terminated,
        next_observation=np.where(last[:, None], 3.0, np.roll(rng.normal(size=(steps, 2)), -1, 0)),
    )  # fmt: skip
    observations = log.observations[log.now]
    after = np.where(last[:, None], 3.0, np.roll(observations, -1, 0))
    weights = np.array([1.0, -2.0])
    value, next_value = observations @ weights, np.where(terminated, 0.0, after @ weights)
    squared = []
    for t in range(steps):
        end = t - t % 8 + 7
        powers = DISCOUNT ** np.arange(end - t + 1)
        found = powers @ log.reward[t : end + 1] + DISCOUNT * powers[-1] * next_value[end]
        squared.append((found - value[t]) ** 2)
    delta = log.reward + DISCOUNT * next_value - value
    assert SquaredReturns(log, DISCOUNT).score(delta).value == pytest.approx(np.mean(squared), rel=1e-10)


@pytest.mark.parametrize("actions", [False, True])
def test_moments_are_the_sum_over_pairs_of_episodes(actions):
    log = log_of(7)
    delta = np.random.default_rng(1).normal(size=len(log))
    criterion = HeldOutMoments(log, discount=None, actions=actions)
    sums = [sum(criterion.z[t] * delta[t] for t in np.flatnonzero(log.episode == g)) for g in range(7)]
    expected = sum(sums[g] @ sums[h] for g in range(7) for h in range(7) if g != h) / len(log) ** 2
    assert criterion.score(delta).value == pytest.approx(expected, rel=1e-10)


def test_moments_of_returns_are_those_of_their_errors():
    log = log_of(7, ratios=False)
    delta = np.random.default_rng(1).normal(size=len(log))
    errors = [
        sum(DISCOUNT ** (k - t) * delta[k] for k in range(t, len(log)) if log.episode[k] == log.episode[t])
        for t in range(len(log))
    ]
    criterion = HeldOutMoments(log, discount=DISCOUNT, actions=False)
    plain = HeldOutMoments(log, discount=None, actions=False)
    plain.z = criterion.z
    assert criterion.score(delta).value == pytest.approx(plain.score(np.array(errors)).value, rel=1e-10)


def test_instruments_are_orthonormal_weighted_by_ratios_and_contain_a_constant():
    log = log_of(200)
    z = HeldOutMoments(log, discount=None, actions=False).z / log.ratio[:, None]
    np.testing.assert_allclose(z.T @ z / len(log), np.eye(z.shape[1]), atol=1e-8)
    constant = z @ z.mean(axis=0)  # the projection of 1
    assert np.mean((constant - 1) ** 2) < 0.01  # of which the cutoff drops a little


def test_noise_has_a_criterion_of_mean_zero_and_its_standard_error():
    log, rng = log_of(60), np.random.default_rng(3)
    criterion = HeldOutMoments(log, discount=None, actions=False)
    values = np.array([criterion.score(rng.normal(size=len(log))).value for _ in range(400)])
    assert abs(values.mean()) < 4 * values.std() / 20
    sums = [np.sum((criterion.z.T @ rng.normal(size=len(log))) ** 2) / len(log) ** 2 for _ in range(100)]
    assert np.mean(sums) > 4 * abs(values.mean())  # with the squares the mean would not be zero
    shifted = [criterion.score(rng.normal(size=len(log)) + 1.0) for _ in range(400)]
    standard_errors = np.mean([score.standard_error for score in shifted])
    assert 0.9 < standard_errors / np.std([score.value for score in shifted]) < 1.6  # episodes of random length


@pytest.mark.parametrize("kind", ["returns", "moments"])
def test_parts_are_what_changes_without_an_episode(kind):
    log, rng = log_of(150, ratios=kind == "moments"), np.random.default_rng(4)
    delta = 0.5 + rng.normal(size=len(log))
    criterion = (
        SquaredReturns(log, DISCOUNT) if kind == "returns" else HeldOutMoments(log, discount=None, actions=False)
    )
    score, changes = criterion.score(delta), []
    for g in range(150):
        kept = log.episode != g
        if kind == "returns":
            without = SquaredReturns(log[kept], DISCOUNT).score(delta[kept]).value
        else:
            sums = np.array([criterion.z[log.episode == h].T @ delta[log.episode == h] for h in range(150) if h != g])
            without = (np.sum(sums.sum(axis=0) ** 2) - np.sum(sums**2)) / kept.sum() ** 2
        changes.append(score.value - without)
    assert np.corrcoef(changes, score.parts)[0, 1] > 0.999
    assert np.linalg.norm(changes) == pytest.approx(np.linalg.norm(score.parts), rel=0.05)


def test_scores_are_averaged_over_folds_and_subtracted_by_episode():
    one, two = Score(1.0, np.array([0.1, -0.1])), Score(3.0, np.array([0.4, -0.4]))
    mean = mean_score([one, two])
    assert mean.value == 2
    np.testing.assert_allclose(mean.parts, [0.05, -0.05, 0.2, -0.2])
    assert two.minus(one).standard_error == pytest.approx(np.sqrt(2 * 2 * 0.3**2))
    assert Score(1.0, np.array([0.0])).standard_error == np.inf


def test_which_criterion_and_what_it_needs():
    def kind(episodes, **arguments):
        return criterion_of(log_of(episodes, ratios=False), discount=DISCOUNT, values="state", **arguments).description

    assert kind(3, returns=True) == "squared mean difference of value and return given the observation"
    assert kind(1, returns=True) == "mean squared difference of value and return"
    assert kind(3, returns=False) == "squared mean TD error given the observation"
    assert on_policy(log_of(3, ratios=False), "state")
    assert not on_policy(log_of(3, ratios=False), "state-action")
    assert not on_policy(log_of(3), "state")
    with pytest.raises(ValueError, match="Give a log of at least two episodes"):
        HeldOutMoments(log_of(1), discount=None, actions=False)


def test_the_standard_error_of_large_parts_is_finite():
    assert Score(1.0, np.array([3e200, -4e200])).standard_error == pytest.approx(np.sqrt(2) * 5e200)
