"""The change of the policy value by enriched features: against an evaluation with these features."""

import numpy as np
import pytest

from helpers.fits import fit_of
from helpers.small_mdp import SmallMDP
from valuefit.evaluation.checks.enrichment import enrichment
from valuefit.evaluation.checks.instruments import COUNT
from valuefit.evaluation.checks.moments import TDMoments
from valuefit.evaluation.errors import Influence

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
    assert change.functions == COUNT
    rel = 0.2 if "trace" in setting else 1e-6  # the equations that are added have no trace
    assert change.value == pytest.approx(full.value.estimate - fit.value.estimate, rel=rel)
    assert change.standard_error == pytest.approx(np.linalg.norm(parts(full) - parts(fit)), rel=rel)


def parts(fit):
    influence = fit.errors.sandwich.influences([fit.starts])[0]
    assert isinstance(influence, Influence)
    return fit.errors.contributions(fit.starts, influence)


def test_given_starts_have_no_known_instruments():
    mdp = SmallMDP()
    fit = fit_of(mdp.log(30), features=mdp.rows, discount=0.9, starts=np.array([0, 1]))
    assert enrichment(fit, TDMoments(fit), np.arange(fit.problem.n)) is None
