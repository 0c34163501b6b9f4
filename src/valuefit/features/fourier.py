"""The Fourier cosine basis."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from valuefit.features.scaling import data_range, lowest_indices, range_in_words, row_blocks, to_unit, whole_number
from valuefit.features.transformer import FeatureTransformer
from valuefit.typing import Array


class Fourier(FeatureTransformer):
    """Cosines cos(pi c'x) of observations scaled to [0, 1], as dense rows.

    c runs over the vectors of whole numbers 0 ... `order`, lowest |c|^2 first, so that a limit on their number
    leaves out the fastest waves; c = 0 comes first and is the constant. Prefer it for smooth values in one to six
    dimensions. Observations outside the range are taken at its edge; a dimension that never changes gets no waves.

    order: the largest entry of c. max_features: how many c at most. low, high: ranges, one number or one a
    dimension; taken from the data where None.

    Konidaris, Osentoski and Thomas 2011.
    """

    def __init__(self, order: int = 5, max_features: int = 200, *, low: Any = None, high: Any = None) -> None:
        self.order = order
        self.max_features = max_features
        self.low = low
        self.high = high

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the ranges and list the waves."""
        X = self._check_input(X, fitting=True)
        order = whole_number("order", self.order, 0)
        count = whole_number("max_features", self.max_features, 1)
        self.low_, self.high_ = data_range(X, self.low, self.high)
        moves = np.flatnonzero(self.high_ > self.low_)
        waves = lowest_indices(len(moves), count, each=order, total=order * len(moves), power=2)
        self.coefficients_ = np.zeros((len(waves), X.shape[1]), np.int64)
        self.coefficients_[:, moves] = waves
        self.complete_ = len(waves) == (order + 1) ** len(moves)
        return self

    def transform(self, X: Any) -> Any:
        """Rows (n, waves), in float64."""
        observations = self._check_input(X)
        steps = grown_from(self.coefficients_)
        order = int(self.coefficients_.max(initial=0))
        n, dimensions = observations.shape
        out = np.empty((n, len(steps)))
        for block in row_blocks(n, 2 * len(steps) + 2 * dimensions * (order + 1)):
            powers = np.ones((order + 1, dimensions, len(out[block])), complex)
            if order:
                powers[1:] = np.exp(1j * np.pi * to_unit(observations[block], self.low_, self.high_).T)
                np.multiply.accumulate(powers, out=powers)
            turned = np.ones((len(steps), powers.shape[2]), complex)
            for column, (before, dimension, times) in enumerate(steps):
                if times:
                    np.multiply(turned[before], powers[times, dimension], out=turned[column])
            out[block] = turned.real.T
        return self._output(out, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name a column: the entries of c."""
        self._check_fitted()
        return np.array(["cos_" + "_".join(map(str, c)) for c in self.coefficients_], dtype=object)

    def options(self) -> dict[str, Any]:
        """The settings that make these features again without the data."""
        return {
            "order": int(self.order), "max_features": int(self.max_features),
            "low": self.low_.tolist(), "high": self.high_.tolist(),
        }  # fmt: skip

    def describe(self) -> str:
        """What was made, for a sentence."""
        limited = "" if self.complete_ else ", the lowest frequencies only"
        return (
            f"Fourier cosines of order {self.order} ({len(self.coefficients_)} features{limited}; the first is the "
            f"constant) over {range_in_words(self.low_, self.high_)}"
        )


def grown_from(coefficients: Array) -> list[tuple[int, int, int]]:
    """For each c an earlier one that differs in one dimension only, that dimension, and the entry of c there.

    exp(i pi c'x) is then one product, ten times cheaper than a cosine. Setting an entry to 0 lowers |c|^2, so what
    is left stands earlier in the list.
    """
    places = {tuple(c): place for place, c in enumerate(coefficients.tolist())}
    steps = []
    for c in coefficients.tolist():
        dimension = max((k for k, entry in enumerate(c) if entry), default=0)
        steps.append((places[(*c[:dimension], 0, *c[dimension + 1 :])], dimension, c[dimension]))
    return steps
