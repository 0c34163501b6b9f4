"""The change of the policy value by enriched features: against an evaluation with these features."""

import numpy as np
import pytest

import valuefit as vf
from coverage_study.tasks import tasks
from helpers.fits import fit_of
from helpers.small_mdp import SmallMDP
from valuefit.checks.enrichment import enrichment
from valuefit.checks.instruments import COUNT
from valuefit.checks.moments import TDMoments
from valuefit.data.validation import step_numbers

SETTINGS = [{}, {"trace": 0.6}, {"off_policy": True}, {"off_policy": True, "values": "state-action"}]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: "+".join(setting) or "plain")
def test_it_is_the_change_by_all_functions_of_the_state(setting):
    """60 random functions of five states span all functions of them, as one-hot features do."""
    settings = dict(setting)
    mdp = SmallMDP(off_policy=settings.pop("off_policy", False), features=2)
    log = mdp.log(200, propensities=True)
    settings |= {"discount": 0.9, "tol": 1e-12, "interval": "cr1"}
    settings["policy"] = mdp.policy if "off_policy" in setting else None
    fit, full = fit_of(log, features=mdp.rows, **settings), fit_of(log, features="one-hot", **settings)
    change = enrichment(fit, TDMoments(fit), np.arange(len(log)))
    assert change.setting.startswith(f"{COUNT} random functions of the observation")
    rel = 0.2 if "trace" in setting else 1e-6  # the equations that are added have no trace
    assert change.value == pytest.approx(full.value.estimate - fit.value.estimate, rel=rel)
    assert change.standard_error == pytest.approx(np.linalg.norm(parts(full) - parts(fit)), rel=rel)


def parts(fit):
    return fit.errors.parts([fit.starts])[0]


@pytest.mark.parametrize("route", ["on-policy", "ratios", "state-action"])
def test_functions_of_the_history_are_worth_what_they_hide(route):
    """The bias where episodes end after 20 steps, which observations do not show: against the steps observed."""
    timer = tasks()["hidden-timer"]
    log, settings = timer.log(route, 60, np.random.default_rng(0)), timer.settings(route, "auto")
    fit = fit_of(log, **settings)
    number = step_numbers(log.begins)
    timed = vf.Transitions.from_arrays(
        np.column_stack([log.observations[log.now], number]), log.reward, terminated=log.terminated, action=log.action,
        behaviour_prob=log.behaviour_prob,
    )  # fmt: skip
    if route != "on-policy":
        settings["policy"] = lambda observation: timer.target(observation[:, :1])
    settings["features"] = lambda observation: np.hstack(
        [np.eye(5)[observation[:, 0].astype(int)], np.eye(20)[np.minimum(observation[:, 1].astype(int), 19)][:, 1:]]
    )
    full = fit_of(timed, **settings)
    change = enrichment(fit, TDMoments(fit), np.arange(len(log)), history=True)
    assert change.value == pytest.approx(full.value.estimate - fit.value.estimate, rel=0.1)
    assert change.standard_error == pytest.approx(np.linalg.norm(parts(full) - parts(fit)), rel=0.2)
    assert change.value > 5 * change.standard_error


def test_given_starts_have_no_known_instruments():
    mdp = SmallMDP()
    fit = fit_of(mdp.log(30), features=mdp.rows, discount=0.9, starts=np.array([0, 1]))
    assert enrichment(fit, TDMoments(fit), np.arange(fit.problem.n)) is None
