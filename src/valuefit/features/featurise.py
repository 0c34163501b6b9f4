"""Feature rows of the observations that a problem uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.validation import are_state_numbers
from valuefit.typing import Array


def featurise(table: Array, used: Array, features: Any, name: str) -> Any:
    """Feature rows of the observations in use."""
    observations = table[used]
    if features is None:
        if are_state_numbers(observations):
            # a column for every state number, so that the weights of slices, splits and grown logs line up
            if table.min() >= 0 and table.max() < 10 * len(table) + 1000:
                return sparse.eye_array(int(table.max()) + 1, format="csr")[observations]
            return sparse.eye_array(len(table), format="csr")[used]
        return observations.reshape(len(observations), -1)
    if isinstance(features, str | np.ndarray | list):
        raise ValueError(
            f"{name} is {type(features).__name__}; give a callable or a scikit-learn transformer. "
            "Ready feature rows go into Problem.from_rows."
        )
    rows = features(observations) if callable(features) else features.fit_transform(observations)
    shape = rows.shape if sparse.issparse(rows) else np.shape(rows)
    if len(shape) != 2 or shape[0] != len(observations):
        raise ValueError(
            f"{name} gave an array of shape {shape} for {len(observations)} observations. "
            "It must give a matrix with one row an observation."
        )
    return rows
