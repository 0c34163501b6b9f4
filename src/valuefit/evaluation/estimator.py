"""Policy evaluation as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions, check_log
from valuefit.data.validation import flags, numbers, run_starts
from valuefit.engine.loop import solve
from valuefit.engine.moments import Moments
from valuefit.engine.result import Result
from valuefit.evaluation.criterion import criterion_of, on_policy
from valuefit.features.registry import Fitted, make
from valuefit.features.transformer import FeatureTransformer, number_type
from valuefit.messages import said, shown
from valuefit.problem.problem import Problem
from valuefit.rows.storage import small_rows
from valuefit.typing import Array


class PolicyEvaluator(BaseEstimator):
    """Linear value function of the policy that generated a log, for clone, GridSearchCV, cross_val_score.

    `fit(log)` takes a `Transitions`; `fit(X, rewards, next_X=..., terminated=..., ratio=...)` takes arrays. `predict`
    returns values. `score` is minus the error on the given log, which should hold other episodes than the fit: an
    estimate of the squared mean difference of value and return given the observation or, with importance ratios, of the
    squared mean TD error (`evaluation.criterion`). Scores on the same log are comparable between features, traces,
    ridges and solvers. To search, give a `Transitions` as X and split by episode:
    `GridSearchCV(PolicyEvaluator(...), {"features": ...}, cv=GroupKFold(5)).fit(log, groups=log.episode)`.

    ridge: shrinks values towards 0, and nothing here says by how much, as the check of `evaluate` does.
    features: a name or transformer as in `evaluate`, cloned and fitted in `fit` (its parameters are searched as
    `features__bins` etc.); None takes the observations as they are (one-hot for numbered states).
    Other parameters: as in `Problem` and `solve`. Fitted attributes: theta_, features_,
    result_, n_features_in_.
    """

    def __init__(
        self,
        features: Any = None,
        discount: float = 0.99,
        trace: float = 0.0,
        ridge: float = 0.0,
        solver: Any = "auto",
        tol: float = 1e-8,
        max_passes: float = 500,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.discount = discount
        self.trace = trace
        self.ridge = ridge
        self.solver = solver
        self.tol = tol
        self.max_passes = max_passes
        self.seed = seed

    def fit(
        self, X: Any, y: Any = None, *, next_X: Any = None, terminated: Any = None, truncated: Any = None,
        ratio: Any = None, episode: Any = None,
    ) -> PolicyEvaluator:  # fmt: skip
        """Fit to a log (`Transitions`, no y), or to observations X (n, p) with rewards y (n,).

        Rows of X are consecutive steps of one episode, unless `episode` or the ends (`terminated`, `truncated`)
        separate episodes. Without next_X the next observation is the next row, and the last step of an episode, which
        has no next row, is left out unless it terminated. Other arguments: one entry per step, (n,).
        """
        log = self._log(X, y, next_X, terminated, truncated, ratio, episode, reset=True)
        fitted, _ = make(self._features(log), log, effective_share=log.effective_share)
        self.__dict__.pop("moments_", None)
        problem = Problem(log, fitted, discount=self.discount, trace=self.trace, ridge=self.ridge)
        result = solve(problem, self.solver, tol=self.tol, max_passes=self.max_passes, seed=self.seed)
        if result.status != "converged":
            warnings.warn(f"{result.status}: {result.message}", ConvergenceWarning, stacklevel=2)
        self.features_: Fitted = fitted
        self.result_: Result = result
        self.theta_: Array = result.theta
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, next_X: Any = None, terminated: Any = None, truncated: Any = None,
        ratio: Any = None, episode: Any = None,
    ) -> PolicyEvaluator:  # fmt: skip
        """Add a log of whole episodes to those of earlier calls, and solve for all of them by `lstd`.

        Features are fitted to the first log. Memory does not grow. Arguments: as in `fit`. The ridge may change between
        calls; features, discount and trace are part of the sums over earlier logs, and may not.
        """
        moments = getattr(self, "moments_", None)
        if moments is not None:
            self._refuse_changed()
        log = self._log(X, y, next_X, terminated, truncated, ratio, episode, reset=moments is None)
        if moments is None:
            moments = Moments(self._features(log), discount=self.discount, trace=self.trace)
            self._summed_with = self._in_sums()
        result = moments.add(log).solve(ridge=self.ridge)
        assert moments.fitted is not None
        self.moments_: Moments = moments
        self.features_, self.result_, self.theta_ = moments.fitted, result, result.theta
        return self

    def _in_sums(self) -> dict[str, Any]:
        """The parameters on which the sums of `partial_fit` depend."""
        given = self.get_params()
        return {name: given[name] for name in given if name.split("__")[0] in ("features", "discount", "trace")}

    def _refuse_changed(self) -> None:
        """Raise ValueError if one of them was changed since the first call."""
        before, now = self._summed_with, self._in_sums()
        for name in sorted(before | now):
            one, other = before.get(name), now.get(name)
            if one is not other and not (isinstance(one, Real | str) and one == other):
                raise ValueError(
                    f"{name} is {shown(other)}, but the logs of earlier calls of partial_fit were added with "
                    f"{shown(one)}. Set it back, or start again with sklearn.base.clone(evaluator)."
                )

    def _features(self, log: Transitions) -> Any:
        """The argument of `make`: a clone of the user's, or the default."""
        estimator = isinstance(self.features, BaseEstimator | FeatureTransformer)
        features = clone(self.features) if estimator else self.features
        if features is None:
            features = "one-hot" if log.has_numbered_states else "identity"
        return features

    def predict(self, X: Any) -> Array:
        """Values (n,) of observations (n, p), or of the observation before each step of a `Transitions`."""
        check_is_fitted(self)
        if isinstance(X, Transitions):
            used, index = np.unique(X.now, return_inverse=True)
            return self._values(X.observations[used])[index]
        with _as_numbers("X"):
            X = validate_data(self, X, dtype=number_type(X), reset=False)
        return self._values(X)

    def score(
        self, X: Any, y: Any = None, *, next_X: Any = None, terminated: Any = None, truncated: Any = None,
        ratio: Any = None, episode: Any = None,
    ) -> float:  # fmt: skip
        """Minus the error on this log: higher is better. With ratios it needs at least two episodes."""
        check_is_fitted(self)
        discount = float(self.discount)  # which may be a Fraction
        log = self._log(X, y, next_X, terminated, truncated, ratio, episode, reset=False)
        used, now, next = log.used_observations()
        value = self._values(log.observations[used])
        td_errors = log.reward + np.where(log.terminated, 0.0, discount * value[next]) - value[now]
        criterion = criterion_of(log, discount=discount, values="state", returns=on_policy(log, "state"))
        return -criterion.score(td_errors).value

    def _values(self, observations: Array) -> Array:
        return np.asarray(small_rows(self.features_.transform(observations)) @ self.theta_).ravel()

    def _log(
        self, X: Any, y: Any, next_X: Any, terminated: Any, truncated: Any, ratio: Any, episode: Any, *, reset: bool
    ) -> Transitions:
        """The arguments of `fit` or `score` as a log."""
        if isinstance(X, ShardedLog):
            check_log("PolicyEvaluator", X)
        if isinstance(X, Transitions):
            if any(given is not None for given in (y, next_X, terminated, truncated, ratio, episode)):
                raise ValueError(
                    "X is a Transitions, which contains rewards, ends and ratios: give no other arguments."
                )
            if reset:
                self.n_features_in_ = int(np.prod(X.observations.shape[1:]))
            return X
        if y is None:
            raise ValueError(
                "PolicyEvaluator requires y to be passed, but the target y is None: give the rewards, or a Transitions "
                "that holds them."
            )
        with _as_numbers("X or y"):
            X, y = validate_data(self, X, y, dtype=number_type(X), y_numeric=True, reset=reset)
        n = len(X)
        terminated, truncated = flags("terminated", terminated, n), flags("truncated", truncated, n)
        if episode is None:
            episode = np.concatenate(([0], np.cumsum((terminated | truncated)[:-1])))
        episode = numbers("episode", episode, length=n, dtype=np.int64)
        ratio = np.ones(n) if ratio is None else numbers("ratio", ratio, length=n)
        kept = np.ones(n, bool)
        if next_X is None:
            last = np.append(run_starts(episode)[1:], True)
            kept = terminated | ~last
            if not kept.any():
                raise ValueError(
                    f"No step of X has a next observation: X has {n} sample{'s' * (n > 1)} and episodes of one step "
                    "each. Give next_X, or mark the steps that terminated."
                )
            next_X = np.vstack([X[1:], X[-1:]])[kept]
        return Transitions.from_arrays(
            X[kept], y[kept], terminated=terminated[kept], truncated=truncated[kept], episode=episode[kept],
            next_observation=next_X, ratio=ratio[kept],
        )  # fmt: skip


@contextmanager
def _as_numbers(name: str) -> Iterator[None]:
    """Refuse integers beyond the range of float, which scikit-learn does not catch."""
    try:
        yield
    except OverflowError as error:
        raise ValueError(f"{name} cannot be read as numbers ({said(error)}). Give rows of numbers.") from error
