"""Kernel features: a constant and the functions of a kernel at landmarks, orthonormal in the norm of the kernel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.linalg as linalg

from valuefit.data.validation import number, one_of
from valuefit.features.scaling import (
    MAX_SAMPLED_OBSERVATIONS,
    count_option,
    data_range,
    is_list,
    number_text,
    refuse_large,
    row_blocks,
    squared_distances,
    to_unit,
)
from valuefit.features.transformer import FeatureTransformer
from valuefit.messages import shown
from valuefit.typing import Array

KERNELS = ("matern", "gaussian", "laplace")
STEPS_PER_LANDMARK = 20  # fewer leave directions that a single episode determines
# by their ratios: means of fewer are biased towards the logged policy (tests/claims/test_automatic_features.py)
EFFECTIVE_STEPS_PER_LANDMARK = 10
MAX_LANDMARKS = 1000  # unless more are requested
# A single length scale leaves gaps between the few landmarks at the edges of the data. With three, policy values of 13
# tasks (100 episodes, 26 settings, both routes) had RMSEs of 0.03 to 1.17 times those with one, geometric mean 0.89.
SCALES, MAX_SCALES, SCALE_RATIO = 3, 10, 3.0  # number of length scales, and each relative to the one before
LOW_QUANTILE, HIGH_QUANTILE = 0.05, 0.95  # their distance is the unit of a column: outliers do not change it
MAX_UNITS = 2.0  # from the median, further observations are clipped
# Measured by `python -m coverage_study.many_columns`.
MAX_JOINT_COLUMNS = 8  # of observations whose kernel has no additive part by default
ADDITIVE_SHARE = 0.5  # of the kernel, for more columns
MIN_ORTHOGONAL_PART = 1e-6  # landmarks whose kernel function has a smaller part orthogonal to the others are dropped
MAX_BLOCK_BYTES = 32 << 20  # of kernel values: triangular solves need long blocks


class Kernel(FeatureTransformer):
    """A constant, then L^-1 (k(x, z_1), ..., k(x, z_m)) for landmarks z, where L L' is their kernel matrix; dense rows.

    This is the Nystroem approximation of the kernel: |theta|^2 without the constant is the squared norm of the value
    function in the kernel's space. It follows value functions of any shape, the finer the more landmarks there are.
    The landmarks are drawn at random from the observations, so there are most where the log has most data; those
    that the others, and the constant, represent up to rounding are dropped.

    The kernel is a mean of kernels of three length scales, each three times the one before: the shortest follows the
    value where landmarks are close to each other, the longest joins those that are far apart.

    In many dimensions landmarks are far from each other, and functions of the distance nearly linear. With more than 8
    columns half of the kernel is therefore additive, a mean over the columns of kernels of one column each.

    landmarks: their number, or the landmarks themselves, (count, dimensions); None takes one for 20 observations.
    kernel: "matern" (smoothness 5/2), "gaussian" or "laplace". length_scale: one number or one per dimension, in
    units of the distance between the 5% and 95% quantiles of a column (of half the period for periodic columns, of two
    values for categorical ones); None takes 5 times the distance between neighbouring landmarks. scales: number of
    length scales, of which `length_scale` is the shortest; None takes 3, or 1 where a length scale is given.
    periodic: {dimension: period}. categorical: dimensions whose numbers have no order. low, high: the range of each
    dimension, four units wide, to which observations are clipped; None takes it from the data. seed: of the draw.
    additive: the share of the additive part, from 0 to 1; None takes 1/2 for more than 8 dimensions, else 0.
    """

    def __init__(
        self,
        landmarks: Any = None,
        kernel: str = "matern",
        length_scale: Any = None,
        *,
        periodic: Any = None,
        categorical: Any = (),
        seed: int = 0,
        low: Any = None,
        high: Any = None,
        additive: Any = None,
        scales: Any = None,
    ) -> None:
        self.landmarks = landmarks
        self.kernel = kernel
        self.length_scale = length_scale
        self.periodic = periodic
        self.categorical = categorical
        self.seed = seed
        self.low = low
        self.high = high
        self.additive = additive
        self.scales = scales

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the units of the columns, draw the landmarks and choose the length scale."""
        X = self._check_input(X, fitting=True)
        one_of("kernel", self.kernel, KERNELS)
        rng = np.random.default_rng(count_option("seed", self.seed, 0))
        self.periods_ = periods_of(self.periodic, X.shape[1])
        self.categories_ = dimensions_of(self.categorical, X.shape[1])
        if overlap := self.categories_ & self.periods_.keys():
            raise ValueError(f"Dimension {min(overlap)} is both periodic and categorical; choose one.")
        self.additive_ = self._choose_additive(X.shape[1])
        chosen = 1 if self.length_scale is not None else SCALES
        self.scales_ = chosen if self.scales is None else count_option("scales", self.scales, 1, MAX_SCALES)
        sample = X[np.sort(rng.permutation(len(X))[:MAX_SAMPLED_OBSERVATIONS])]
        low, high = unit_range(sample)
        self.low_, self.high_ = data_range(sample, low if self.low is None else self.low,
                                           high if self.high is None else self.high)  # fmt: skip
        drawn = self._draw(X, rng)
        self.length_scale_ = np.ones(X.shape[1])
        self._place(drawn)
        self.length_scale_ = self._choose_length_scale(drawn.shape[1])
        while True:
            self._place(drawn)
            kept, self.factor_ = independent(self._kernel(drawn))
            if len(kept) == len(drawn):
                break
            drawn = drawn[kept]
        if not is_list(self.landmarks) and self._spans_constant(sample):
            self._place(drawn[:-1])
            _, self.factor_ = independent(self._kernel(drawn[:-1]))
        return self

    def transform(self, X: Any) -> Any:
        """Rows (n, 1 + landmarks), in float64."""
        observations = self._check_input(X)
        columns = len(self.landmarks_)
        out = np.empty((len(observations), 1 + columns))
        out[:, 0] = 1.0
        for block in row_blocks(len(observations) if columns else 0, 2 * columns, MAX_BLOCK_BYTES):
            values = self._kernel(observations[block])
            out[block, 1:] = linalg.solve_triangular(
                self.factor_, values.T, lower=True, overwrite_b=True, check_finite=False
            ).T  # fmt: skip
        return self._output(out, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name per column."""
        self._check_fitted()
        return np.array(["constant", *(f"kernel{c}" for c in range(len(self.landmarks_)))], dtype=object)

    def options(self) -> dict[str, Any]:
        """Arguments of the constructor that give the same features without the data."""
        return {
            "landmarks": self.landmarks_.tolist(), "kernel": self.kernel, "length_scale": self.length_scale_.tolist(),
            "periodic": {str(k): period for k, period in self.periods_.items()},
            "categorical": sorted(self.categories_), "seed": int(self.seed),
            "low": self.low_.tolist(), "high": self.high_.tolist(), "additive": self.additive_, "scales": self.scales_,
        }  # fmt: skip

    def describe(self) -> str:
        """The fitted features in words."""
        scales = sorted(set(map(number_text, self.length_scale_)), key=float)
        scale = scales[0] if len(scales) == 1 else f"{scales[0]} to {scales[-1]}"
        name = self.kernel.capitalize()
        if self.scales_ > 1:
            scale += f", and {self.scales_ - 1} longer ones"
        if self.additive_:
            name += f", {number_text(self.additive_)} of it a sum over columns"
        return (
            f"kernel features ({name}) at {len(self.landmarks_)} landmarks with length scale {scale} (in units of each "
            "column's range from the 5% to the 95% quantile) and a constant"
        )

    def _draw(self, X: Array, rng: np.random.Generator) -> Array:
        """Distinct landmarks."""
        if is_list(self.landmarks):
            try:
                given = np.array(self.landmarks, np.float64)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"landmarks is {shown(self.landmarks)}; give a number, or rows of numbers.") from None
            given = given.reshape(-1, X.shape[1]) if given.size == 0 else given
            if given.ndim != 2 or given.shape[1] != X.shape[1] or not np.isfinite(given).all():
                raise ValueError(
                    f"landmarks has shape {given.shape}; give a number, or one row of {X.shape[1]} finite numbers for "
                    "each landmark."
                )
            count, drawn = len(given), given
        else:
            count = min(max(len(X) // STEPS_PER_LANDMARK, 1), MAX_LANDMARKS)
            if self.landmarks is not None:
                count = count_option("landmarks", self.landmarks, 1)
            drawn = X[np.sort(rng.choice(len(X), min(count, len(X)), replace=False))]
            drawn = drawn[np.sort(np.unique(drawn, axis=0, return_index=True)[1])]
        remedy = 'Use fewer landmarks, or vf.load(log, memory="stream"), whose rows are computed in parts.'
        refuse_large(max(len(X), len(drawn)), 1 + len(drawn), 1 + len(drawn), remedy)
        return drawn

    def _place(self, landmarks: Array) -> None:
        self.landmarks_ = landmarks
        self.codes_ = {k: np.unique(landmarks[:, k]) for k in self.categories_}
        self.scaled_landmarks_ = self.coordinates(landmarks)
        self.landmark_functions_ = self.column_functions(landmarks)

    def _spans_constant(self, X: Array) -> bool:
        """Whether some combination of the landmarks' functions is 1 at these observations, up to rounding.

        It is where all observations are landmarks (few distinct ones) or equal to one; one function is then redundant.
        """
        weights = linalg.cho_solve((self.factor_, True), np.ones(len(self.landmarks_)), check_finite=False)
        blocks = [slice(STEPS_PER_LANDMARK), *row_blocks(len(X), len(weights))]  # on most logs the first one decides
        return all(np.abs(self._kernel(X[block]) @ weights - 1).max() < MIN_ORTHOGONAL_PART for block in blocks)

    def _choose_additive(self, dimensions: int) -> float:
        if self.additive is None:
            return ADDITIVE_SHARE if dimensions > MAX_JOINT_COLUMNS else 0.0
        return number("additive", self.additive, "it must be a number from 0 to 1", lambda x: 0 <= x <= 1)

    def _choose_length_scale(self, dimensions: int) -> Array:
        """One for each dimension of the observations."""
        if self.length_scale is None:
            # from 4 to 6 times the policy values of seven tasks were equally accurate, at 2 up to 3.9 times less
            return np.full(dimensions, 5.0 * neighbour_distance(self.scaled_landmarks_))
        low, high = 1e-12, 1e12
        requirement = f"it must be a number from {low:g} to {high:g}, or one for each of {dimensions} dimensions"
        given = list(self.length_scale) if is_list(self.length_scale) else [self.length_scale] * dimensions
        if len(given) != dimensions:
            raise ValueError(f"length_scale is {shown(self.length_scale)}; {requirement}.")
        return np.array([number("length_scale", scale, requirement, lambda x: low <= x <= high) for scale in given])

    def coordinates(self, X: Array) -> Array:
        """Coordinates in which the length scale is 1; periodic columns become a circle, categories corners."""
        return np.hstack([part / scale for part, scale in zip(self._parts(X), self.length_scale_, strict=True)])

    def column_functions(self, X: Array) -> Array:
        """Functions of single columns, (m, count), whose inner products are the additive part, its share included.

        Those of a number are cosines over its range, weighted by the spectral density of the Matern kernel whose
        length scale is half of the range; a periodic or categorical column has its coordinates.
        """
        if not self.additive_:
            return np.zeros((len(X), 0))
        frequency = np.pi * np.arange(1, 7)  # higher ones would have weights below 2e-4
        weight = (1 + (0.5 * frequency) ** 2 / 5) ** -3
        weight = np.sqrt(weight / weight.sum())
        parts = [
            part if k in self.periods_ or k in self.categories_ else np.cos(part / (2 * MAX_UNITS) * frequency) * weight
            for k, part in enumerate(self._parts(X))
        ]
        return np.sqrt(self.additive_ / len(parts)) * np.hstack(parts)

    def _parts(self, X: Array) -> list[Array]:
        """The coordinates of each column, (m, 1) or more, in its unit."""
        columns = 2 * MAX_UNITS * to_unit(X, self.low_, self.high_)
        parts = []
        for k in range(X.shape[1]):
            if k in self.periods_:
                period = self.periods_[k]
                angle = 2 * np.pi * (np.remainder(X[:, k], period) / period)  # without it small periods overflow
                parts.append(0.5 * np.column_stack([np.cos(angle), np.sin(angle)]))
            elif k in self.categories_:
                parts.append(np.sqrt(0.5) * (X[:, k, None] == self.codes_[k]))
            else:
                parts.append(columns[:, [k]])
        return parts

    def _kernel(self, X: Array) -> Array:
        """k(x, z) for every observation x and landmark z."""
        values = self._joint_kernel(squared_distances(self.coordinates(X), self.scaled_landmarks_))
        if self.additive_:
            values *= 1 - self.additive_
            values += self.column_functions(X) @ self.landmark_functions_.T
        return values

    def _joint_kernel(self, distance: Array) -> Array:
        """The mean over the length scales, the shortest of which is 1, of the kernel of these squared distances."""
        values = np.zeros_like(distance)
        for scale in range(self.scales_):
            values += kernel_values(self.kernel, distance / SCALE_RATIO ** (2 * scale))
        values /= self.scales_
        return values


def kernel_values(kernel: str, distance: Array) -> Array:
    """The kernel of squared distances, which are overwritten, with length scale 1."""
    if kernel == "gaussian":
        distance *= -0.5
        return np.exp(distance, out=distance)
    np.sqrt(distance, out=distance)
    if kernel == "laplace":
        return np.exp(-distance)
    distance *= np.sqrt(5.0)
    decay = np.exp(-distance)
    decay *= 1 + distance + distance**2 / 3
    return decay


def independent(K: Array) -> tuple[Array, Array]:
    """Indices of landmarks whose kernel functions are not, up to rounding, combinations of others; and the Cholesky
    factor of their kernel matrix.

    Landmarks that are all independent keep their order: features are the same after storage.
    """
    if not len(K):
        return np.arange(0), K
    try:
        factor = linalg.cholesky(K, lower=True, check_finite=False)
        if factor.diagonal().min() ** 2 >= MIN_ORTHOGONAL_PART / 2:  # stored landmarks have it, up to rounding
            return np.arange(len(K)), factor
    except linalg.LinAlgError:
        pass
    factor, order, rank, _ = linalg.lapack.dpstrf(K, tol=MIN_ORTHOGONAL_PART, lower=1)
    return order[:rank] - 1, np.tril(factor[:rank, :rank])


def neighbour_distance(Z: Array) -> float:
    """Median distance of a row to the nearest other one; 1 for a single row."""
    nearest = np.empty(len(Z))
    for block in row_blocks(len(Z), len(Z)):
        distance = squared_distances(Z[block], Z)
        distance[distance <= 1e-14 * (1 + np.einsum("ij,ij->i", Z, Z))] = np.inf  # itself, and others that are equal
        nearest[block] = distance.min(axis=1)
    nearest = nearest[np.isfinite(nearest)]
    return float(np.sqrt(np.median(nearest))) if len(nearest) else 1.0


def unit_range(X: Array) -> tuple[Array, Array]:
    """MAX_UNITS units below and above the median of each column; the unit is the distance of two quantiles."""
    bottom, middle, top = np.quantile(X, [LOW_QUANTILE, 0.5, HIGH_QUANTILE], axis=0)
    unit = np.where(top > bottom, top - bottom, X.max(axis=0) - X.min(axis=0))
    return middle - MAX_UNITS * unit, middle + MAX_UNITS * unit


def periods_of(value: Any, dimensions: int) -> dict[int, float]:
    """The option `periodic`, with dimensions as numbers (JSON makes them text)."""
    if value is None:
        return {}
    requirement = "it must be a dictionary from a dimension, counted from 0, to its period"
    if not isinstance(value, dict):
        raise ValueError(f"periodic is {shown(value)}; {requirement}.")
    return {
        min(dimensions_of([int(k) if isinstance(k, str) and k.isdecimal() else k], dimensions, "periodic")):
        number("periodic", period, requirement, lambda x: 0 < x < np.inf)
        for k, period in value.items()
    }  # fmt: skip


def dimensions_of(value: Any, dimensions: int, name: str = "categorical") -> set[int]:
    """The option `categorical`: dimensions of the observations, counted from 0."""
    given = list(value) if is_list(value) else [value]
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k < dimensions:
            raise ValueError(f"{name} names dimension {shown(k)}; there are dimensions 0 to {dimensions - 1}.")
    return set(map(int, given))
