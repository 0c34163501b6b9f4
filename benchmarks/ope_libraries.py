"""How each library answers the tasks of `benchmarks.ope_tasks`: as its documentation says, on one thread.

Their settings are the defaults but for those that are stated here. All but valuefit are imported when they run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import valuefit as vf
from benchmarks.ope_tasks import TASKS, Task, constantly
from coverage_study.worlds import Array, draw

LOGS = 20  # of a task
NEURAL_LOGS = 6  # where a network is trained for each
FQE_STEPS = 10_000  # gradient steps of fitted Q evaluation: in the tutorial of d3rlpy, and the default of SCOPE-RL
Found = dict[str, tuple[float, tuple[float, float] | None]]  # by estimator: estimate, 95% interval if there is one


# ---- valuefit ------------------------------------------------------------------------------------------------


def by_valuefit(task: Task, log: vf.Transitions, seed: int) -> Found:
    """Automatic features, by ratios and by state-action values; for the panel the difference of two policies."""
    found: Found = {}
    for name, values in (("by ratios", "state"), ("by state-action values", "state-action")):
        evaluation = vf.evaluate(log, policy=task.target, values=values, discount=task.discount, seed=seed)
        answer: Any = evaluation.policy_value
        if task.name == "panel":
            never = vf.evaluate(log, policy=constantly(0), values=values, discount=task.discount, seed=seed)
            answer = vf.compare(evaluation, never)
        found[name] = answer.estimate, answer.interval
    return found


# ---- d3rlpy --------------------------------------------------------------------------------------------------


class SampledPolicy:
    """What fitted Q evaluation asks of a policy: actions at observations, here drawn from probabilities."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.rng, self.impl = task, np.random.default_rng(seed), self

    def predict_best_action(self, x: Any) -> Any:
        import torch

        return torch.from_numpy(draw(self.task.probabilities(x.numpy()), self.rng))


def start_value(model: Any, task: Task, starts: Array) -> float:
    """The mean over starts and over the actions of the target."""
    values = [model.predict_value(starts, np.full(len(starts), action)) for action in range(task.actions)]
    return float(np.sum(task.probabilities(starts) * np.column_stack(values), axis=1).mean())


def by_d3rlpy(task: Task, log: vf.Transitions, seed: int) -> Found:
    """DiscreteFQE; where an episode was cut, the cut is recorded as a time limit."""
    import d3rlpy
    import torch
    from d3rlpy.logging import NoopAdapterFactory

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    inputs = task.inputs(log.observations[log.now])
    dataset = d3rlpy.dataset.MDPDataset(
        inputs, np.asarray(log.action)[:, None], log.reward.astype(np.float32), log.terminated.astype(np.float32),
        timeouts=log.truncated.astype(np.float32), action_space=d3rlpy.ActionSpace.DISCRETE, action_size=task.actions,
    )  # fmt: skip
    config = d3rlpy.ope.FQEConfig(gamma=task.discount)
    model = d3rlpy.ope.DiscreteFQE(algo=SampledPolicy(task, seed), config=config, device="cpu:0")
    model.fit(dataset, n_steps=FQE_STEPS, show_progress=False, logger_adapter=NoopAdapterFactory())
    return {"fitted Q": (start_value(model, task, inputs[first_steps(log)]), None)}


def first_steps(log: vf.Transitions) -> Array:
    return np.unique(log.episode, return_index=True)[1]


# ---- SCOPE-RL ------------------------------------------------------------------------------------------------


def logged_dataset(task: Task, log: vf.Transitions) -> dict[str, Any]:
    """A log as SCOPE-RL takes it: episodes of one length, of which the last step ends."""
    assert task.steps is not None
    states, episodes = task.inputs(log.observations[log.now]), len(log) // task.steps
    ends = np.tile(np.arange(task.steps) == task.steps - 1, episodes).astype(float)
    return {
        "size": len(log), "n_trajectories": episodes, "step_per_trajectory": task.steps, "action_type": "discrete",
        "n_actions": task.actions, "action_dim": None, "action_keys": None, "action_meaning": None,
        "state_dim": states.shape[1], "state_keys": None, "state": states, "action": np.asarray(log.action),
        "reward": log.reward, "done": ends, "terminal": ends, "info": {}, "pscore": log.behaviour_prob,
        "behavior_policy": "behaviour", "dataset_id": 0,
    }  # fmt: skip


def head_of(task: Task, seed: int) -> Any:
    """The target as a policy of SCOPE-RL, whose own heads give the greedy action to fitted Q evaluation."""
    from scope_rl.policy import BaseHead

    class Target(BaseHead):
        name, action_type = "target", "discrete"
        impl = SampledPolicy(task, seed)

        def __init__(self) -> None:
            """Without the base policy that other heads wrap."""

        def calc_action_choice_probability(self, x: Array) -> Array:
            return task.probabilities(x)

        def calc_pscore_given_action(self, x: Array, action: Array) -> Array:
            return task.probabilities(x)[np.arange(len(x)), action]

        def sample_action_and_output_pscore(self, x: Array) -> tuple[Array, Array]:
            action = draw(task.probabilities(x), self.impl.rng)
            return action, self.calc_pscore_given_action(x, action)

    return Target()


def by_scope_rl(task: Task, log: vf.Transitions, seed: int, *, fitted: bool = False) -> Found:
    """Self-normalised importance sampling by decision, or with `fitted` what needs its fitted Q evaluation.

    That takes the last step of the log for the end, which is right for the table and wrong for the pendulum.
    """
    import d3rlpy
    import torch
    from scope_rl.ope import CreateOPEInput, OffPolicyEvaluation, discrete

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    dataset, names = logged_dataset(task, log), {"snpdis": "weighted importance sampling"}
    estimators = [discrete.SelfNormalizedPDIS()]
    if fitted:
        names = {"dm": "fitted Q", "sndr": "doubly robust"}
        estimators = [discrete.DirectMethod(), discrete.SelfNormalizedDR()]
    inputs = CreateOPEInput(gamma=task.discount, device="cpu:0").obtain_whole_inputs(
        logged_dataset=dataset, evaluation_policies=[head_of(task, seed)], require_value_prediction=fitted,
        n_steps=FQE_STEPS, random_state=seed,
    )  # fmt: skip
    # its default leaves out the reward of the step that ends an episode
    ope = OffPolicyEvaluation(logged_dataset=dataset, ope_estimators=estimators, disable_reward_after_done=False)
    values = ope.estimate_policy_value(inputs)["target"]
    intervals = ope.estimate_intervals(inputs, random_state=seed)["target"]
    return {names[key]: (float(values[key]), interval_of(intervals[key])) for key in names}


def interval_of(found: dict[str, float]) -> tuple[float, float]:
    """The 95% bootstrap interval in a result of SCOPE-RL or obp."""
    return float(found["95.0% CI (lower)"]), float(found["95.0% CI (upper)"])


# ---- obp -----------------------------------------------------------------------------------------------------


def by_obp(task: Task, log: vf.Transitions, seed: int) -> Found:
    """Self-normalised weighting, and doubly robust with gradient boosting, cross-fitted in three folds."""
    from obp import ope
    from sklearn.ensemble import HistGradientBoostingClassifier

    context, action = log.observations[log.now], np.asarray(log.action)
    target = task.target(context)[:, :, None]
    feedback = {
        "n_rounds": len(log), "n_actions": task.actions, "context": context, "action": action,
        "reward": log.reward, "position": np.zeros(len(log), int), "pscore": log.behaviour_prob,
    }  # fmt: skip
    model = ope.RegressionModel(n_actions=task.actions, base_model=HistGradientBoostingClassifier(random_state=seed))
    predicted = model.fit_predict(
        context=context, action=action, reward=log.reward, n_folds=3, random_state=seed
    )  # fmt: skip
    estimators = {
        "snipw": (ope.SelfNormalizedInverseProbabilityWeighting(), "weighted importance sampling"),
        "dr": (ope.DoublyRobust(), "doubly robust"),
    }
    found = ope.OffPolicyEvaluation(feedback, [estimator for estimator, _ in estimators.values()])
    settings = {"action_dist": target, "estimated_rewards_by_reg_model": predicted}
    values = found.estimate_policy_values(**settings)
    intervals = found.estimate_intervals(**settings, random_state=seed)
    return {name: (float(values[key]), interval_of(intervals[key])) for key, (_, name) in estimators.items()}


# ---- EconML --------------------------------------------------------------------------------------------------


def by_econml(task: Task, log: vf.Transitions, seed: int, *, linear: bool = False) -> Found:
    """DynamicDML with its default models, which it chooses, or linear ones as in its README.

    Covariates are controls, so that the effect is the same for all units.
    """
    from econml.panel.dml import DynamicDML
    from sklearn.linear_model import LassoCV, LogisticRegression

    models = {"model_y": LassoCV(cv=3), "model_t": LogisticRegression(), "cv": 3} if linear else {}
    model = DynamicDML(discrete_treatment=True, random_state=seed, **models)
    model.fit(log.reward, np.asarray(log.action), W=log.observations[log.now][:, 1:], groups=log.episode)
    (low,), (high,), (effect,) = *model.effect_interval(T0=0, T1=1), model.effect(T0=0, T1=1)
    return {"DynamicDML" + ", linear models" * linear: (float(effect), (float(low), float(high)))}


# ---- all of them ---------------------------------------------------------------------------------------------


class Library(NamedTuple):
    """package: its name. module: what is imported. run: task, log, seed -> estimates. logs: how many by task."""

    package: str
    module: str
    run: Callable[[Task, vf.Transitions, int], Found]
    logs: dict[str, int]


LIBRARIES = {
    "valuefit": Library("valuefit", "valuefit", by_valuefit, dict.fromkeys(TASKS, LOGS)),
    "scope-rl": Library("scope-rl", "scope_rl.ope", by_scope_rl, {"table": LOGS, "pendulum": LOGS}),
    "scope-rl-fitted": Library("scope-rl", "scope_rl.ope", partial(by_scope_rl, fitted=True), {"table": NEURAL_LOGS}),
    "d3rlpy": Library("d3rlpy", "d3rlpy", by_d3rlpy, {"table": NEURAL_LOGS, "pendulum": NEURAL_LOGS}),
    "obp": Library("obp", "obp.ope", by_obp, {"bandit": LOGS}),
    "econml": Library("econml", "econml.panel.dml", by_econml, {"panel": LOGS}),
    "econml-linear": Library("econml", "econml.panel.dml", partial(by_econml, linear=True), {"panel": LOGS}),
}
