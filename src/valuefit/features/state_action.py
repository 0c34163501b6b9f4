"""Features of an observation and an action: a block of state features for each action."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sparse

from valuefit.data.validation import numbers
from valuefit.features.registry import Fitted, make
from valuefit.features.scaling import whole_number
from valuefit.features.transformer import FeatureTransformer
from valuefit.typing import Array

DENSE_SHARE = 1 / 3  # an entry of CSR takes half as much again as a dense one, and BLAS does not like it


class StateAction(FeatureTransformer):
    """Rows phi(s, a) with the features of s in the block of action a and zeros in the others.

    `Q(s, a) = theta_a' phi(s)`: each action has weights of its own, action a in columns a d ... (a + 1) d - 1.
    Used for values of states and actions (LSTD-Q). Rows are CSR where the state features are or where most entries
    are zero, else dense. A constant in the span of the state features is in the span of each block.

    features: of the observations, anything `valuefit.features.make` takes. actions: how many; None takes one more
    than the largest in the data. The rows that `fit` and `transform` take have the action as their last column.
    """

    def __init__(self, features: Any = "auto", actions: int | None = None) -> None:
        self.features = features
        self.actions = actions

    @classmethod
    def of(cls, features: Fitted, actions: int) -> StateAction:
        """Ready for use, over features that `make` has fitted."""
        stacked = cls(features, actions)
        stacked.features_, stacked.actions_ = features, whole_number("actions", actions, 1)
        return stacked

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the state features to all but the last column of X, which holds the actions."""
        observations, action = apart(X)
        self.actions_ = int(action.max()) + 1 if self.actions is None else whole_number("actions", self.actions, 1)
        one_hot(action, self.actions_)
        self.features_ = make(self.features, observations)[0]
        return self

    def transform(self, X: Any) -> Any:
        """Rows of observations whose last column is the action."""
        observations, action = apart(X)
        return self._output(self.rows(observations, action), X)

    def rows(self, observations: Any, actions: Any) -> Any:
        """phi(s, a), (n, actions * d): one action an observation."""
        self._check_fitted()
        action = numbers("actions", actions, length=len(observations), dtype=np.int64)
        return spread(self.features_.transform(observations), one_hot(action, self.actions_))

    def expected(self, observations: Any, probabilities: Any) -> Any:
        """sum over a of probabilities[., a] phi(s, a): rows of the value of a policy, (n, actions * d)."""
        self._check_fitted()
        weights = np.asarray(probabilities, np.float64)
        if weights.shape != (len(observations), self.actions_):
            raise ValueError(
                f"probabilities has shape {weights.shape}; it must be {(len(observations), self.actions_)}: one row an "
                "observation, one column an action."
            )
        return spread(self.features_.transform(observations), weights)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name a column: the action and the number of the state feature."""
        self._check_fitted()
        width = self.features_.columns
        return np.array([f"a{a}_{j}" for a in range(self.actions_) for j in range(width)], dtype=object)


def apart(X: Any) -> tuple[Array, Array]:
    """Observations, and the actions of the last column."""
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] < 2:
        raise ValueError(f"Give rows of an observation followed by its action; the shape is {X.shape}.")
    return X[:, :-1], numbers("The action (last column)", X[:, -1], dtype=np.int64)


def one_hot(action: Array, actions: int) -> sparse.csr_array:
    """Weights (n, actions) with a 1 at the action of each row."""
    if len(action) and (action.min() < 0 or action.max() >= actions):
        where = int(np.flatnonzero((action < 0) | (action >= actions))[0])
        raise ValueError(f"The action of row {where} is {action[where]}; actions run from 0 to {actions - 1}.")
    return sparse.csr_array(
        (np.ones(len(action)), action, np.arange(len(action) + 1)), shape=(len(action), actions)
    )  # fmt: skip


def spread(rows: Any, weights: Any) -> Any:
    """Row i with weights[i, a] * rows[i] in block a, (n, actions * d): dense or CSR, whichever is smaller."""
    actions, width = weights.shape[1], rows.shape[1]
    weights = sparse.csr_array(weights)
    if not sparse.issparse(rows) and weights.nnz >= DENSE_SHARE * weights.shape[0] * actions:
        dtype = np.result_type(rows.dtype, np.float32)
        dense = weights.toarray().astype(dtype)[:, :, None] * rows[:, None, :]
        return dense.reshape(len(rows), actions * width)
    rows = sparse.csr_array(rows)
    # one piece of CSR for each nonzero weight, in order of row and action: already the order of the result
    piece = rows[np.repeat(np.arange(rows.shape[0]), np.diff(weights.indptr))]
    lengths = np.diff(piece.indptr)
    columns = piece.indices + np.repeat(weights.indices.astype(np.int64) * width, lengths)
    values = piece.data * np.repeat(weights.data.astype(np.result_type(rows.dtype, np.float32)), lengths)
    return sparse.csr_array((values, columns, piece.indptr[weights.indptr]), shape=(rows.shape[0], actions * width))
