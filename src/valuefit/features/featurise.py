"""Feature rows of the observations that a problem uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.validation import are_state_numbers
from valuefit.messages import translated, user_errors
from valuefit.typing import Array


def featurise(table: Array, used: Array, features: Any, name: str) -> Any:
    """Feature rows of the observations `table[used]`; `name` is the argument that error messages mention."""
    observations = table if len(used) == len(table) else table[used]
    if features is None:
        if are_state_numbers(observations):
            # one column for every number up to the largest: slices and extensions of a log then share their columns
            if table.min() >= 0 and table.max() < 10 * len(table) + 1000:  # else most columns would be empty
                return sparse.eye_array(int(table.max()) + 1, format="csr")[observations]
            return sparse.eye_array(len(table), format="csr")[used]
        return observations.reshape(len(observations), -1)
    if not (callable(features) or callable(getattr(features, "fit_transform", None))):
        raise ValueError(
            f"{name} is {type(features).__name__}; give a callable or a scikit-learn transformer. "
            "To use feature rows, call Problem.from_rows."
        )
    with user_errors(name, observations):
        rows = features(observations) if callable(features) else features.fit_transform(observations)
    with translated(
        f"{name} did not return an array", f"It must return a matrix with one row for each of {len(observations)} "
        "observations.",
    ):  # fmt: skip
        shape = rows.shape if sparse.issparse(rows) else np.shape(rows)
    check_shape(name, shape, len(observations))
    return rows


def check_shape(name: str, shape: tuple[int, ...], count: int) -> None:
    """Raise ValueError unless features returned a matrix with one row for each of so many observations."""
    if len(shape) != 2 or shape[0] != count:
        raise ValueError(
            f"{name} returned an array of shape {shape} for {count} observations. "
            "It must return a matrix with one row for each observation."
        )
