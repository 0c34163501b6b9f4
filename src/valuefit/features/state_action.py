"""Features of an observation and an action: a block of state features for each action."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sparse

from valuefit.data.validation import first_row, numbers
from valuefit.features.registry import Fitted, make
from valuefit.features.scaling import count_option, refuse_large, row_blocks
from valuefit.features.transformer import FeatureTransformer
from valuefit.typing import Array


class StateAction(FeatureTransformer):
    """Rows phi(s, a): the features of s in the block of action a, zeros in the other blocks.

    `Q(s, a) = theta_a' phi(s)`: each action has its own weights, those of action a in columns a d ... (a + 1) d - 1.
    Used for state-action values (LSTD-Q). Rows are CSR if the state features are, or if most entries are zero, and
    dense otherwise. A constant in the span of the state features is in the span of each block.

    features: state features, as `valuefit.features.make` accepts them. actions: number of actions; None takes the
    largest in the data plus one. In the rows passed to `fit` and `transform`, the last column is the action.
    """

    def __init__(self, features: Any = "auto", actions: int | None = None) -> None:
        self.features = features
        self.actions = actions

    @classmethod
    def of(cls, features: Fitted, actions: int) -> StateAction:
        """The transformer for state features that `make` has fitted; it needs no `fit`."""
        stacked = cls(features, actions)
        stacked.features_, stacked.actions_ = features, count_option("actions", actions, 1)
        refuse_many_actions(stacked.actions_, features.columns)
        return stacked

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the state features to all but the last column of X, which holds the actions."""
        observations, action = split_actions(X)
        self.actions_ = int(action.max()) + 1 if self.actions is None else count_option("actions", self.actions, 1)
        one_hot(action, self.actions_)
        self.features_ = make(self.features, observations, actions=self.actions_)[0]
        refuse_many_actions(self.actions_, self.features_.columns)
        return self

    def transform(self, X: Any) -> Any:
        """Rows of observations whose last column is the action."""
        observations, action = split_actions(X)
        return self._output(self.rows(observations, action), X)

    def rows(self, observations: Any, actions: Any) -> Any:
        """phi(s, a), (n, actions * d), for one action per observation."""
        self._check_fitted()
        action = numbers("actions", actions, length=len(observations), dtype=np.int64)
        return spread(self.features_.transform(observations), one_hot(action, self.actions_))

    def expected(self, observations: Any, probabilities: Any) -> Any:
        """sum_a probabilities[., a] phi(s, a), (n, actions * d): expected feature rows under a policy."""
        self._check_fitted()
        weights = np.asarray(probabilities, np.float64)
        if weights.shape != (len(observations), self.actions_):
            raise ValueError(
                f"probabilities has shape {weights.shape}; it must be {(len(observations), self.actions_)}: one row "
                "per observation, one column per action."
            )
        return spread(self.features_.transform(observations), weights)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name per column: the action and the index of the state feature."""
        self._check_fitted()
        width = self.features_.columns
        return np.array([f"a{a}_{j}" for a in range(self.actions_) for j in range(width)], dtype=object)


def refuse_many_actions(actions: int, columns: int) -> None:
    """Raise ValueError if the blocks of all actions would have too many columns."""
    refuse_large(1, 1, actions * columns, "Number the actions from 0 without gaps, or use fewer features.")


def split_actions(X: Any) -> tuple[Array, Array]:
    """The observations and the actions (last column) of X."""
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] < 2:
        raise ValueError(f"X has shape {X.shape}; its rows must be an observation followed by its action.")
    return X[:, :-1], numbers("The action (last column)", X[:, -1], dtype=np.int64)


def one_hot(action: Array, actions: int) -> sparse.csr_array:
    """Weights (n, actions): 1 at the action of each row."""
    if (where := first_row((action < 0) | (action >= actions))) is not None:
        raise ValueError(f"The action of row {where} is {action[where]}; actions run from 0 to {actions - 1}.")
    return sparse.csr_array(
        (np.ones(len(action)), action, np.arange(len(action) + 1)), shape=(len(action), actions)
    )  # fmt: skip


def spread(rows: Any, weights: Any, source: Array | None = None) -> Any:
    """Rows (n, actions * d) with weights[i, a] * rows[source[i]] in block a of row i: dense or CSR.

    source: which of the rows belongs to each row of the weights; None for all of them, in order.
    """
    actions, width = weights.shape[1], rows.shape[1]
    weights = sparse.csr_array(weights)
    source = np.arange(rows.shape[0]) if source is None else source
    dtype = np.result_type(rows.dtype, np.float32)
    # a CSR entry takes 1.5 times the memory of a dense one, and dense products run at the speed of BLAS
    if not sparse.issparse(rows) and 3 * weights.nnz >= weights.shape[0] * actions:
        dense = np.empty((len(source), actions, width), dtype)
        for block in row_blocks(len(source), width):
            each = weights[block].toarray().astype(dtype)
            np.multiply(each[:, :, None], rows[source[block], None, :], out=dense[block])
        return dense.reshape(len(source), actions * width)
    if not sparse.issparse(rows) and 2 * np.count_nonzero(rows) > rows.size:  # zeros are stored: ranges of columns
        values = np.repeat(weights.data.astype(dtype), width)
        values *= rows[np.repeat(source, np.diff(weights.indptr))].ravel()
        columns = (weights.indices[:, None] * width + np.arange(width)).ravel()
        return sparse.csr_array((values, columns, width * weights.indptr), shape=(len(source), actions * width))
    # a copy of the row for each nonzero weight, sorted by row and action like the entries of the result
    copies = sparse.csr_array(rows)[np.repeat(source, np.diff(weights.indptr))]
    lengths = np.diff(copies.indptr)
    columns = copies.indices + np.repeat(weights.indices.astype(np.int64) * width, lengths)
    values = copies.data * np.repeat(weights.data.astype(dtype), lengths)
    return sparse.csr_array((values, columns, copies.indptr[weights.indptr]), shape=(len(source), actions * width))
