"""Base class of the built-in features: the interface of a scikit-learn transformer, without importing scikit-learn.

That import takes a second. It happens only if scikit-learn is the caller, for inputs other than valid arrays, and for
errors.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from valuefit.data.validation import all_finite
from valuefit.typing import Array

MAX_VALUE_CHARACTERS = 700  # per parameter in a repr; the limit of scikit-learn


class FeatureTransformer(ABC):
    """Parameters, input checks and output containers, as scikit-learn 1.6 and later expect them.

    A subclass stores the arguments of `__init__` under their names; its `fit` stores results under names that end in
    `_`, and its `transform` returns `self._output(rows, X)`.
    """

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from observations X (n, p); y is ignored."""

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """Feature rows of observations X (n, p)."""

    def rows_of_checked(self, X: Array) -> Any:
        """`transform` of a matrix that is known to be finite and of the fitted width, to "default" output."""
        return self.transform(X)

    @abstractmethod
    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the feature columns."""

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit to X and return its feature rows."""
        return self.fit(X, y).transform(X)

    def options(self) -> dict[str, Any]:
        """Arguments of the constructor, as plain data, that give the same features without the data.

        An argument that `fit` completes (`low`, `bins`, ...) has the value that it has stored (`low_`, `bins_`).
        """
        names = inspect.signature(type(self)).parameters
        return {name: plain(vars(self).get(f"{name}_", getattr(self, name))) for name in names}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; `deep` adds those of nested transformers as `name__parameter`."""
        parameters: dict[str, Any] = {}
        for name in sorted(inspect.signature(type(self)).parameters):
            value = getattr(self, name)
            if deep and callable(getattr(value, "get_params", None)) and not isinstance(value, type):
                parameters |= {f"{name}__{inner}": nested for inner, nested in value.get_params().items()}
            parameters[name] = value
        return parameters

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters, also those of nested transformers (`name__parameter`)."""
        valid = self.get_params(deep=False)
        # nested parameters last: another parameter may replace the nested transformer
        for key, value in sorted(parameters.items(), key=lambda item: "__" in item[0]):
            name, _, nested = key.partition("__")
            if name not in valid:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. Valid parameters are: {list(valid)}."
                )
            if nested:
                getattr(self, name).set_params(**{nested: value})
            else:
                setattr(self, name, value)
        return self

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose the container that `transform` returns: "default", "pandas" or "polars"; None changes nothing."""
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # sklearn.base.clone copies this attribute
        return self

    def __repr__(self) -> str:
        """The class with the parameters that are not at their default."""
        half, shown = MAX_VALUE_CHARACTERS // 2, []
        for name, parameter in sorted(inspect.signature(type(self)).parameters.items()):
            text = repr(getattr(self, name))
            if text != repr(parameter.default):
                shown.append(f"{name}={text}" if len(text) <= 2 * half else f"{name}={text[:half]}...{text[-half:]}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags(),
            classifier_tags=None, regressor_tags=None,
        )  # fmt: skip

    def _check_fitted(self) -> None:
        if not has_fitted_attributes(self):
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)  # raises NotFittedError

    def _check_input(self, X: Any, *, fitting: bool = False, dtype: Any = np.float64) -> Array:
        """X as a finite array (n, p) of this dtype (None: as it is); `fitting` records p, which must not change later.

        Valid arrays are checked here. scikit-learn checks everything else: it converts lists, compares the column
        names of data frames, and raises the errors that its users know.
        """
        if not fitting:
            self._check_fitted()
        if is_finite_matrix(X) and "feature_names_in_" not in vars(self):
            if fitting:
                self.n_features_in_ = X.shape[1]
            if X.shape[1] == self.n_features_in_:
                return np.asarray(X, dtype)
        from sklearn.utils.validation import validate_data

        return np.asarray(validate_data(self, X, dtype=dtype or number_type(X), reset=fitting))

    def _output(self, rows: Any, X: Any) -> Any:
        """The rows, as a data frame if `set_output` or `sklearn.set_config` requests one."""
        kind = vars(self).get("_sklearn_output_config", {}).get("transform")
        if kind is None and "sklearn" in sys.modules:
            kind = sys.modules["sklearn"].get_config()["transform_output"]
        if kind in (None, "default"):
            return rows
        from sklearn.preprocessing import FunctionTransformer

        frame = FunctionTransformer(lambda _: rows, feature_names_out=lambda *_: self.get_feature_names_out())
        return frame.set_output(transform=kind).transform(X)


def plain(value: Any) -> Any:
    """Arrays and tuples as lists, NumPy numbers as those of Python."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def number_type(X: Any) -> Any:
    """The dtype, as scikit-learn names it, that keeps integers: "numeric" if X holds integers, else float64."""
    try:
        kind = np.asarray(X).dtype.kind
    except ValueError:  # rows of different lengths
        kind = "O"
    return "numeric" if kind in "iu" else np.float64


def has_fitted_attributes(transformer: Any) -> bool:
    """Whether the transformer has attributes that end in `_`, scikit-learn's convention for results of `fit`."""
    return any(name.endswith("_") and not name.startswith("__") for name in vars(transformer))


def is_finite_matrix(X: Any) -> bool:
    """Whether X is an array (n, p) of finite real numbers, n and p at least 1."""
    valid = isinstance(X, np.ndarray) and X.ndim == 2 and X.size > 0 and X.dtype.kind in "biuf"
    return valid and all_finite(X)
