"""The coverage study: worlds against Gymnasium, truths against long logs, statistics, storage, and a quick run."""

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv
from gymnasium.envs.toy_text import CliffWalkingEnv, FrozenLakeEnv
from scipy.stats import binomtest

from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

import valuefit as vf
from coverage_study import calibration, page, records
from coverage_study.calibration import Found, Key, row_of
from coverage_study.control import Acrobot, CartPole, MountainCar, toy_text
from coverage_study.designs import DESIGNS, SECTIONS, normal_starts, small_table
from coverage_study.published import CIRCLE_DISCOUNT, CIRCLE_TARGET, Shi, circle, shi_target
from coverage_study.records import Cell, generator, run_cells
from coverage_study.splines import TensorSplines, published_size
from coverage_study.statistics import Share, Summary, covers, proportion_interval, summarise
from coverage_study.synthetic import mixed, optimal
from coverage_study.tasks import FIT, TEST, tasks
from coverage_study.truths import truth_of
from coverage_study.verdict import cell_of, keys_of
from coverage_study.worlds import log_of, simulated_value, table_policy
from valuefit.checks.check import HypothesisTest, judge
from valuefit.checks.verdict import verdict_of

# ---- worlds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "world"),
    [(CartPoleEnv, CartPole), (MountainCarEnv, MountainCar), (AcrobotEnv, Acrobot)],
    ids=lambda kind: kind.__name__,
)
def test_worlds_take_the_steps_of_gymnasium(environment, world):
    theirs, ours, rng = environment(), world(), np.random.default_rng(0)
    ended = 0
    for episode in range(4):
        theirs.reset(seed=episode)
        # pushed in one direction for long, so that limits and terminations occur
        for action in np.repeat(rng.integers(ours.actions, size=40), 8):
            state = np.asarray(theirs.state, float)[None]
            observation, reward, terminated, _, _ = theirs.step(int(action))
            after, own_reward, own_terminated = ours.step(state, np.array([action]), rng)
            np.testing.assert_allclose(ours.observe(after)[0], observation, atol=2e-6)
            assert (own_reward[0], own_terminated[0]) == (reward, terminated)
            ended += terminated
            if terminated:
                break
    assert ended or environment is not CartPoleEnv


def test_worlds_start_as_in_gymnasium():
    for environment, world in ((CartPoleEnv, CartPole), (MountainCarEnv, MountainCar), (AcrobotEnv, Acrobot)):
        theirs = np.array([environment().reset(seed=seed)[0] for seed in range(300)])
        ours = world().observe(world().start(300, np.random.default_rng(0)))
        np.testing.assert_allclose(ours.min(axis=0), theirs.min(axis=0), atol=0.01)
        np.testing.assert_allclose(ours.max(axis=0), theirs.max(axis=0), atol=0.01)


@pytest.mark.parametrize("environment", [FrozenLakeEnv, CliffWalkingEnv])
def test_tables_have_the_outcomes_of_gymnasium(environment):
    theirs = environment()
    table = toy_text(theirs)
    np.testing.assert_allclose(table.probability.sum(axis=2), 1)
    for state, action in ((14, 2), (0, 1), (10, 0)):
        P, reward = np.zeros(table.states), 0.0
        for probability, after, gain, terminated in theirs.P[state][action]:
            P[after] += probability * (not terminated)
            reward += probability * gain
        np.testing.assert_allclose(table.transition()[state, action], P)
        assert table.mean_reward()[state, action] == pytest.approx(reward)


def test_the_value_of_a_table_is_that_of_its_simulation():
    table = toy_text(FrozenLakeEnv())
    policy = mixed(optimal(table, 0.9), 0.2)
    value, error = simulated_value(table, table_policy(policy), 0.9, 20000)
    assert abs(value - table.value(policy, 0.9)) < 4 * error


def test_a_log_has_the_probabilities_of_its_policy_and_ends_where_the_world_ends():
    table, _ = small_table()
    policy = np.tile([0.2, 0.8], (5, 1))
    log = log_of(table, table_policy(policy), 300, 6, np.random.default_rng(0))
    assert set(np.unique(log.behaviour_prob)) == {0.2, 0.8}
    assert log.action.mean() == pytest.approx(0.8, abs=0.03)
    lengths = np.bincount(log.episode)
    assert lengths.max() == 6
    assert log.terminated.sum() + log.truncated.sum() == 300
    assert (lengths[log.episode[log.truncated]] == 6).all()


# ---- truths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["strong-ratios-trace-100", "rare-action-30", "aggregated-states-100", "square-100",
                                  "hidden-lag-100"])  # fmt: skip
def test_fixed_points_are_the_estimates_of_long_logs(name):
    draw = DESIGNS[name].draw
    log, settings, truth = draw(np.random.default_rng(0), episodes=20000)
    found = vf.evaluate(log, **settings, interval="cr1").policy_value
    assert abs(found.estimate - truth) < 4 * found.standard_error
    assert found.standard_error < 0.1 * max(1.0, abs(truth))


def test_the_values_of_the_published_studies():
    assert circle().value(CIRCLE_TARGET, CIRCLE_DISCOUNT) == pytest.approx(10.0758, abs=1e-4)
    assert truth_of("shi").value == pytest.approx(0.2892, abs=0.002)
    assert truth_of("shi").standard_error <= 0.001
    value, error = simulated_value(Shi(), shi_target, 0.5, 20000, seed=1)
    assert abs(value - truth_of("shi").value) < 4 * error


def test_simulated_truths_are_precise():
    for task in tasks().values():
        if task.exact is None:
            value, error = truth_of(task.name)
            log = task.log("on-policy", 100, np.random.default_rng(0))
            returns = np.bincount(log.episode, weights=log.reward)
            assert error < 0.05 * max(returns.std(), 0.1 * abs(value)), task.name


def test_missing_truths_name_the_command():
    with pytest.raises(ValueError, match=r"python -m coverage_study\.tasks tetris"):
        truth_of("tetris")


def test_splines_sum_to_one_and_starts_are_normal():
    x = np.random.default_rng(0).normal(size=(200, 2))
    rows = TensorSplines(published_size(3500)).fit(x).transform(x)
    assert rows.shape == (200, 25)
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    starts = normal_starts()
    np.testing.assert_allclose(starts.mean(axis=0), 0, atol=0.01)
    np.testing.assert_allclose(np.cov(starts.T), np.eye(2), atol=0.02)


# ---- statistics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (47, 50), (950, 1000)])
def test_proportion_intervals_agree_with_scipy(successes, trials):
    expected = binomtest(successes, trials).proportion_ci(0.999, "exact")
    np.testing.assert_allclose(proportion_interval(successes, trials), (expected.low, expected.high), atol=1e-9)


def record(inside=True, level="sound", p=0.5, nu=50.0, **others):
    return {"truth": 0.0, "estimate": 0.1, "standard_error": 1.0, "interval": [-1.0, 1.0] if inside else [0.5, 2.5],
            "effective_episodes": nu, "level": level, "checks": [["a test", "pass", 1.0, p, None], ["no test", "pass",
            None, None, None]], "seconds": 0.1} | others  # fmt: skip


def many(inside, outside, **others):
    return [record(True, **others)] * inside + [record(False, **others)] * outside


def test_a_summary_counts_coverage_warnings_and_tests():
    logs = [*many(8, 2), record(level="caution", p=0.01), {"truth": 0.0, "refused": "no", "seconds": 0.1}]
    found = summarise(logs)
    assert found.coverage == Share(9, 11)
    assert found.without_interval == pytest.approx(1 / 12)
    assert found.warned == pytest.approx(2 / 12)
    assert found.sizes == {"a test": Share(1, 11)}
    assert found.length == pytest.approx(2.0)
    assert found.level == "sound"
    with pytest.raises(ValueError, match="nothing to summarise"):
        summarise(logs[-1:])


def test_the_rule_of_the_designs():
    assert summarise(many(950, 50)).met
    assert not summarise(many(890, 110)).met
    assert not summarise(many(1000, 0)).met  # too long
    assert summarise(many(890, 110, nu=5.0)).met
    assert not summarise(many(800, 200, nu=5.0)).met
    assert summarise(many(800, 200, nu=5.0, level="caution")).met


def test_the_row_of_a_task():
    key = Key("task", 10, "ratios", "auto")
    right = Found(key, [*many(30, 2), *many(8, 0, level="caution")])
    wrong = Found(key, [*many(2, 0), *many(0, 38, level="do not use")])
    between = Found(key, many(34, 6))
    assert [cell.kind for cell in (right, wrong, between)] == ["right", "wrong", "between"]
    row = row_of("task", [right, wrong, between])
    assert (row.wrong_cells, row.right_cells, row.cells) == (1, 1, 3)
    assert row.sound_if_wrong == pytest.approx(0.05)
    assert row.sound_if_right == pytest.approx(0.8)
    assert row.sound_coverage == pytest.approx(66 / 74)
    assert row.met
    assert not row_of("task", [Found(key, many(2, 38))]).met
    assert not row_of("task", [Found(key, many(40, 0, level="caution"))]).met
    pooled = calibration.rows_of([right], ["task", "other"], "all")[-1]
    assert (pooled.title, pooled.cells, pooled.logs, pooled.least_coverage) == ("all", 1, 40, 0.92)


def test_checks_are_counted_in_wrong_and_right_cells():
    key = Key("task", 10, "ratios", "auto")
    bad = [["one", "fail", None, None, None], ["two", "pass", None, None, None]]
    good = [["one", "pass", None, None, None], ["two", "warn", None, None, None]]
    wrong = Found(key, [*many(0, 3, checks=bad), *many(0, 1, checks=good)])
    right = Found(key, many(4, 0, checks=good))
    assert calibration.flagged_by_check([wrong, right]) == {"one": (0.75, 0.0), "two": (0.25, 1.0)}


def judged_cell(task, covered, p_value, size):
    """A cell of ten logs with one test, and one check that passed."""
    interval = [-1.0, 1.0] if covered else [1.0, 2.0]
    checks = [["solver", "pass", None, None, None, None], ["returns", "pass", 1.0, p_value, size, None]]
    record = {"truth": 0.0, "estimate": 0.0, "interval": interval, "level": "sound", "checks": checks}
    return Found(Key(task, 10, "on-policy", "auto"), [record] * 10)


def test_leaving_a_task_out_fits_the_constants_to_the_others():
    """Right logs of `small` are sound only where sizes below 1 pass; wrong logs of `large` then pass as well."""
    cells = [
        judged_cell("small", True, 0.001, 0.7), judged_cell("small", False, 0.001, 3.0),
        judged_cell("large", True, 0.9, 0.0), judged_cell("large", False, 0.001, 0.8),
    ]  # fmt: skip
    small, large = calibration.leave_one_out(cells, ["small", "large"])
    assert small.fixed.title == "small"
    assert (small.chosen.size, small.fixed.sound_if_right, small.fitted.sound_if_right) == (0.0, 0.0, 0.0)
    assert (large.chosen.size, large.fixed.sound_if_wrong, large.fitted.sound_if_wrong) == (1.0, 0.0, 1.0)
    assert page.left_out_lines([large])[-1] == "| large | 1% | 1 | 100% | 100% | 50.0% | 0% | 100% | 100.0% |"


@pytest.mark.parametrize("p_value", [0.2, 0.04, 0.004])
@pytest.mark.parametrize(("size", "error"), [(None, None), (0.3, None), (0.8, None), (0.8, 0.3), (0.8, 0.5)])
def test_a_record_is_judged_as_an_evaluation_is(p_value, size, error):
    tests = HypothesisTest("one", 1.0, p_value, "", "", size, error), HypothesisTest("two", 1.0, 0.03, "", "", 0.9)
    checks = judge(tests)
    stored = record(checks=[[check.name, "pass", 1.0, check.p_value, check.size, check.size_error] for check in checks])
    assert calibration._rejudged(stored, calibration.Constants())["level"] == verdict_of(checks).level


def test_an_interval_without_noise_covers_up_to_rounding():
    assert covers(record(interval=[3.0, 3.0], truth=3.0 + 1e-9))
    assert not covers(record(interval=[3.0, 3.0], truth=3.1))


# ---- runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["quiet-lander", "still-balance"])
def test_logs_of_quiet_worlds_have_no_reward_that_the_target_reaches(name):
    task = tasks()[name]
    rewarded = {}
    for route in ("ratios", "on-policy"):
        log = task.log(route, 300, np.random.default_rng(0))
        rewarded[route] = float((log.reward[log.terminated] > 0).mean())
    assert rewarded["ratios"] < 0.01
    assert rewarded["on-policy"] > 0.9


def test_fit_and_test_tasks_are_apart_and_of_all_kinds():
    assert set(FIT) | set(TEST) == set(tasks())
    assert not set(FIT) & set(TEST)
    for names in (FIT, TEST):
        chosen = [tasks()[name] for name in names]
        assert len(chosen) >= 5
        assert {bool(task.fault) for task in chosen} == {True, False}
        assert {task.exact is None for task in chosen} == {True, False}
        assert {route for task in chosen for route in task.routes} == {"on-policy", "ratios", "state-action"}


@pytest.mark.parametrize("name", list(FIT + TEST))
def test_every_task_draws_logs_and_settings(name):
    task = tasks()[name]
    for key in keys_of(task):
        log, settings, truth = cell_of(key._replace(episodes=5)).draw(generator(name, 0))
        assert len(log.episodes) == 5
        assert ("policy" in settings) == (key.route != "on-policy")
        assert np.isfinite(truth)


def test_runs_resume_and_do_not_mix_versions(tmp_path, monkeypatch):
    calls = []

    def draw(rng):
        calls.append(1)
        return DESIGNS["balanced-10"].draw(rng)

    cell = Cell("some", draw, tmp_path)
    ((_, first),) = run_cells([cell], 2, jobs=0)
    ((_, again),) = run_cells([cell], 3, jobs=0)
    assert len(calls) == 3
    assert again[1]["estimate"] == first[1]["estimate"]
    ((_, none),) = run_cells([Cell("late", draw, tmp_path)], 2, jobs=0, seconds=-1.0)
    assert none == {}
    monkeypatch.setattr(records, "sources", lambda: "another version")
    assert cell.load() == {}
    assert len(cell.load(keep=True)) == 3


def test_an_interrupted_run_keeps_what_is_finished(tmp_path):
    count = iter(range(10))

    def draw(rng):
        if next(count) == 2:
            raise KeyboardInterrupt
        return DESIGNS["balanced-10"].draw(rng)

    cell = Cell("some", draw, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(run_cells([cell], 5, jobs=0))
    assert sorted(cell.load()) == [0, 1]


def test_processes_give_the_same_numbers(tmp_path):
    draw = DESIGNS["strong-ratios-30"].draw
    ((_, here),) = run_cells([Cell("some", draw, tmp_path / "a")], 3, jobs=0)
    ((_, there),) = run_cells([Cell("some", draw, tmp_path / "b")], 3, jobs=2)
    for number in range(3):
        assert {**here[number], "seconds": 0} == {**there[number], "seconds": 0}


def test_the_page_has_every_table_and_the_figure(tmp_path, monkeypatch):
    for name, value in (("PAGE", tmp_path / "page.md"), ("FIGURE", tmp_path / "page.png"), ("FOLDER", tmp_path)):
        monkeypatch.setattr(page, name, value)
    summaries: dict[str, Summary] = {name: summarise(many(190, 10)) for name in DESIGNS}
    text = page.write(summaries).read_text()
    assert "Not measured." in text  # the verdict
    page.write_verdicts({title: [row_of("some task", [])] for title in ("fitted", "tested")}, [])
    text = (tmp_path / "page.md").read_text()
    assert "Not measured." not in text
    assert "{" not in text
    assert all(f"| {name} |" in text for name in DESIGNS)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_the_designs_of_every_section_are_there():
    assert {design.section for design in DESIGNS.values()} == set(SECTIONS)
    assert sum(design.section == "published" for design in DESIGNS.values()) == 10


QUICK = {"balanced-30": 60, "strong-ratios-30": 60, "unequal-lengths-100": 60, "rare-action-30": 40,
         "dominating-episode": 40, "null-ratios-20": 40, "shi-a-25x30": 40, "circle-50": 40}  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_intervals_cover(name):
    """The full measurement is `make coverage`; wide bounds, because there are few logs."""
    cell = Cell(name, DESIGNS[name].draw)
    found = summarise([cell.run(replication) for replication in range(QUICK[name])])
    assert found.met
    assert found.coverage.value >= 0.84
    assert found.without_interval <= 0.05


@pytest.mark.slow
def test_the_commands_run(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    for module, only in (("coverage_study", "balanced-10"), ("coverage_study.verdict", "circle")):
        command = [sys.executable, "-m", module, "--only", only, "--replications", "2", "--jobs", "1"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert only in done.stdout
