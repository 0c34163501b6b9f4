"""The fuzz harness detects what it must, its reference is right, and a few cases of every target pass."""

import ctypes
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

from fuzz import outcome, runner
from fuzz.confounding import lowest_value
from fuzz.reference import Invalid, Log, Step, Unknown, exact_lstd, read_log


def raises(error):
    def fail():
        raise error

    return fail


def library_message():
    return float("not a number")


def warn():
    warnings.warn("leaked", RuntimeWarning, stacklevel=1)


MISBEHAVIOUR = {
    "exception": raises(KeyError("x")),
    "unclear": library_message,
    "warning": warn,
    "memory": lambda: np.ones(1 << 30),
    "abort": lambda: ctypes.string_at(0),
    "hang": lambda: sum(iter(int, 1)),
}


@pytest.mark.parametrize("kind", MISBEHAVIOUR)
def test_misbehaviour_is_detected_and_attributed_to_its_case(kind, monkeypatch):
    monkeypatch.setattr(runner, "MAX_CASE_CPU_SECONDS", 1)

    def case(rng, folder):
        if rng.random() < 2:
            number = outcome.progress.get()[0]
            outcome.ask(MISBEHAVIOUR[kind] if number == 3 else lambda: 1)

    report = runner.run(runner.Target("target", case), seed=0, cases=range(6), jobs=1)
    assert report.counts == {"answer": 5, kind: 1}
    assert [failure[:2] for failure in report.failures] == [(3, kind)]


def test_messages_must_be_one_short_printable_line():
    assert not outcome.fault_of_message("There is no file 'x'.")
    for text in ("", "two\nlines of text here", "x" * 1000, "a red \x1b[31m message", "'NoneType' is not iterable."):
        assert outcome.fault_of_message(text)


def test_a_case_depends_on_its_number_and_the_seed_alone(tmp_path):
    drawn = []
    target = runner.Target("target", lambda rng, folder: drawn.append(rng.random()))
    for case in (5, 6, 5):
        assert runner.run_case(target, 1, case, tmp_path) == ("answer", "")
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_reference_sorts_ends_and_drops_steps():
    columns = {
        "obs_0": [1.0, 3.0, 2.0, 9.0], "reward": [0.0, 2.0, 1.0, 5.0], "episode": ["a", "a", "a", "b"],
        "t": [0, 2, 1, 0], "terminated": [0, 1, 0, 0],
    }  # fmt: skip
    log = read_log(columns)
    assert [step.reward for step in log.steps] == [0.0, 1.0, 2.0]  # that of episode b has no next observation
    assert [step.next for step in log.steps] == [(2.0,), (3.0,), None]
    with pytest.raises(Invalid, match="a reward is missing"):
        read_log({**columns, "reward": [None, 2.0, 1.0, 5.0]})
    with pytest.raises(Unknown):
        read_log({**columns, "t": [0, 1, 1, 0]})


def test_exact_lstd_solves_the_equations_of_the_naive_moments():
    rng = np.random.default_rng(0)
    n, d = 12, 2
    rows, after, reward = rng.normal(size=(n, d)), rng.normal(size=(n, d)), rng.normal(size=n)
    ratio = rng.uniform(0.5, 1.5, n)
    steps = [
        Step(t // 4, (), None if t % 4 == 3 else (), reward[t], t % 4 == 3, False, ratio[t], None) for t in range(n)
    ]
    exact = exact_lstd(Log(steps, False), rows, after, discount=0.9, trace=0.5, ridge=0.0)
    u, A, b = np.zeros(d), np.zeros((d, d)), np.zeros(d)
    for t in range(n):
        u = ratio[t] * (rows[t] + (0.45 * u if t % 4 else 0))
        A += np.outer(u, rows[t] - (0.9 * after[t] if t % 4 < 3 else 0))
        b += reward[t] * u
    theta = np.linalg.solve(A, b)
    assert exact.gap(theta) < 1e-25
    assert exact.gap(np.zeros(d)) == 1


def test_the_reference_for_confounding_weighs_steps_within_the_odds():
    """Half of the steps take action 1, so with odds of 3 their weights lie between 1/3 and 1."""
    log = vf.Transitions.from_arrays(np.zeros(4, int), [5.0, 5.0, 0.0, 1.0], terminated=[1] * 4, action=[0, 0, 1, 1])
    policy = np.array([[0.0, 1.0]])
    assert lowest_value(log, policy, 0.9, 3.0, 1) == pytest.approx(1 / 3)
    assert -lowest_value(log, policy, 0.9, 3.0, -1) == pytest.approx(2 / 3)
    unseen = np.array([[0.0, 0.0, 1.0]])
    assert -lowest_value(log, unseen, 0.9, 3.0, -1) == pytest.approx(50.0)  # 5 at every step


def test_only_documented_warnings_may_be_given():
    documented = "The episodes count as only 5 equal ones: the simultaneous intervals may be too short."
    assert outcome.ask(lambda: warnings.warn(documented, stacklevel=1)) is None
    for text, kind in ((documented, RuntimeWarning), ("Something else.", UserWarning)):
        with pytest.raises(outcome.Failure, match=text[:10]):
            outcome.ask(lambda text=text, kind=kind: warnings.warn(text, kind, stacklevel=1))


def test_a_few_cases_of_every_target_pass():
    """The full run is `make fuzz`."""
    command = [sys.executable, "-m", "fuzz", "--cases", "5", "--seed", "1"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
