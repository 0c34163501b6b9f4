"""Features by name, by object or chosen by the data: fitted once, told in a sentence, and written down as a spec."""

from __future__ import annotations

import ast
import copy
import difflib
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sparse

from valuefit.data.transitions import Transitions
from valuefit.data.validation import check_observations
from valuefit.features.transformer import FeatureTransformer, has_fitted_attributes
from valuefit.typing import Array

# name in specs and on the command line -> (module, class)
BUILT_IN = {
    "tiles": ("tiles", "Tiles"),
    "fourier": ("fourier", "Fourier"),
    "rbf": ("rbf", "RBF"),
    "polynomial": ("polynomial", "Polynomial"),
    "one-hot": ("onehot", "OneHot"),
    "identity": ("identity", "Identity"),
}
WIDEST = 4096  # numbers in an observation, beyond which built-in features make no sense
# What "auto" allows itself: on short logs of Mountain Car, more features than this made values of rare states explode.
STEPS_A_FEATURE = 40
MOST_WAVES, MOST_FEATURES = 100, 300


@runtime_checkable
class Transformer(Protocol):
    """What scikit-learn calls a transformer."""

    def fit(self, X: Any, y: Any = None) -> Any: ...

    def transform(self, X: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class Fitted:
    """Features ready for use: `fitted(observations)`, or `fitted.transform(observations)`, gives rows, dense or CSR.

    shape: of one observation. columns: how many features. sentence: what was chosen and learned.
    spec: a dict for JSON from which `from_spec` makes the same features again; None for features of the user's own.
    transformer: what was fitted, or the user's callable.
    """

    transformer: Any
    shape: tuple[int, ...]
    columns: int
    sentence: str
    spec: dict[str, Any] | None = None

    def transform(self, observations: Any) -> Any:
        """Feature rows, one an observation."""
        observations = check_observations("observations", observations)
        if observations.shape[1:] != self.shape:
            if math.prod(observations.shape[1:]) != 1 or math.prod(self.shape) != 1:
                raise ValueError(
                    f"The features were fitted on observations of shape {self.shape}, but these have shape "
                    f"{observations.shape[1:]}. Give an array of shape (n, {', '.join(map(str, self.shape))})."
                )
            observations = observations.reshape(len(observations), *self.shape)
        return feature_rows(self.transformer, observations, self.columns)

    __call__ = transform

    def __repr__(self) -> str:
        return f"Fitted({self.columns} features of observations {self.shape}: {self.sentence})"


def names() -> list[str]:
    """What `make` takes by name."""
    return ["auto", *BUILT_IN]


def make(features: Any, data: Any) -> tuple[Fitted, str]:
    """Fit features to a log once: the fitted features, and the sentence that says what was done.

    features: "auto" (chosen by the observations and the number of steps); a name of `names()`, with options as in
    "fourier:order=5,max_features=200"; a scikit-learn transformer or pipeline (a clone is fitted; one that is fitted
    already is used as it is); a callable that gives rows; or what `make` gave before.
    data: the log, whose distinct observations are fitted, or an array of observations.
    Observations of several axes (images) are flattened for built-in features. Built-in features hold the constant in
    their span, "identity" excepted.
    """
    if isinstance(features, Fitted):
        return features, features.sentence
    steps = len(data)
    observations = check_observations("observations", data.observations if isinstance(data, Transitions) else data)
    if steps == 0:
        raise ValueError("There are no observations to fit features to.")
    if isinstance(features, type):
        raise ValueError(f"features is the class {features.__name__}; give an instance, {features.__name__}().")
    if isinstance(features, str):
        fitted = by_name(features, observations, steps)
    elif name_of(features) is not None:
        fitted = built_in(clone(features), observations, "Used", fit=not is_fitted(features))
    elif isinstance(features, Transformer):
        fitted = custom(features, observations)
    elif callable(features):
        fitted = given(features, observations)
    else:
        raise ValueError(
            f"features is {type(features).__name__}; give a name ({', '.join(names())}), a scikit-learn transformer "
            "or a callable."
        )
    return fitted, fitted.sentence


def from_spec(spec: dict[str, Any]) -> Fitted:
    """The features that wrote this spec, without their data: the same numbers to the last bit."""
    if not isinstance(spec, dict) or set(spec) != {"name", "options", "shape", "sentence"}:
        raise ValueError("A spec of features has exactly the keys name, options, shape and sentence.")
    transformer = build(str(spec["name"]), dict(spec["options"]))
    shape = tuple(int(length) for length in spec["shape"])
    transformer.set_output(transform="default")
    transformer.fit(np.zeros((2, math.prod(shape))))  # the options hold everything that fit would learn from data
    example = np.zeros(shape)
    if spec["name"] == "one-hot":  # 0 need not be among the categories
        example = np.reshape([categories[0] for categories in transformer.categories_], shape)
    return Fitted(transformer, shape, width_of(transformer, example), str(spec["sentence"]), spec)


def by_name(text: str, observations: Array, steps: int) -> Fitted:
    """Features from "name" or "name:option=value,..."."""
    name, _, rest = text.partition(":")
    name, chosen = name.strip().lower().replace("_", "-"), "Used"
    options = parse_options(text, rest)
    if name == "auto":
        if options:
            raise ValueError('features "auto" takes no options. Name the features to set them.')
        name, options, chosen = choose(observations, steps)
    transformer = build(name, options)
    try:
        fitted = built_in(transformer, observations, chosen)
    except TypeError as error:
        raise ValueError(f"features {text!r} has an option of the wrong kind: {error}.") from None
    if fitted.columns * 2 > steps:
        more = f" That is {fitted.columns} features for {steps} steps, too many to learn well: add a ridge."
        return told(fitted, fitted.sentence + more)
    return fitted


def told(fitted: Fitted, sentence: str) -> Fitted:
    """The same features with another sentence."""
    spec = None if fitted.spec is None else {**fitted.spec, "sentence": sentence}
    return Fitted(fitted.transformer, fitted.shape, fitted.columns, sentence, spec)


def parse_options(text: str, rest: str) -> dict[str, Any]:
    """Options of "order=5,bins=[4, 8]"; values are read as Python literals, else taken as text."""
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in re.split(r",(?![^\[(]*[\])])", rest))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"features {text!r}: {part!r} is not of the form option=value.")
        try:
            options[key.strip().replace("-", "_")] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[key.strip().replace("-", "_")] = value.strip()
    return options


def build(name: str, options: dict[str, Any]) -> Any:
    """An unfitted built-in transformer, or a sentence with the nearest name."""
    if name not in BUILT_IN:
        near = suggestion(name, names())
        raise ValueError(f"There are no features {name!r}{near}. There are {', '.join(names())}.")
    module, kind = BUILT_IN[name]
    maker = getattr(importlib.import_module(f"valuefit.features.{module}"), kind)
    allowed = list(inspect.signature(maker).parameters)
    for key in options:
        if key not in allowed:
            near, has = suggestion(key, allowed), f"It has {', '.join(allowed)}." if allowed else "It has none."
            raise ValueError(f"Features {name!r} have no option {key!r}{near}. {has}")
    return maker(**options)


def suggestion(word: str, known: list[str]) -> str:
    """ ", did you mean ...?" where something is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def choose(observations: Array, steps: int) -> tuple[str, dict[str, Any], str]:
    """What "auto" takes: name, options, and the words for it."""
    width = math.prod(observations.shape[1:])
    most = min(max(steps // STEPS_A_FEATURE, 1), MOST_FEATURES)
    why = f'"auto", for {steps} steps and {width} number{"s" * (width != 1)} an observation, chose'
    if width == 1 and observations.dtype.kind in "iub":
        states = len(np.unique(observations))
        if observations.ndim == 1 or states <= most:
            return "one-hot", {}, f'"auto", for {steps} steps over {states} states, chose'
    if width <= 6:
        return "fourier", {"order": 15 if width == 1 else 9, "max_features": min(most, MOST_WAVES)}, why
    degree = 2 if math.comb(width + 2, 2) <= most else 1
    return "polynomial", {"degree": degree, "max_features": max(width + 1, most)}, why


def built_in(transformer: Any, observations: Array, words: str, *, fit: bool = True) -> Fitted:
    """A built-in transformer on flat observations, with its spec."""
    name, shape = str(name_of(transformer)), observations.shape[1:]
    width = math.prod(shape)
    if width > WIDEST:
        raise ValueError(
            f"An observation holds {' x '.join(map(str, shape))} = {width} numbers, too many for {name!r} features. "
            f"Give a transformer of your own that makes at most {WIDEST} of them, such as PCA or an encoder."
        )
    transformer.set_output(transform="default")  # solvers take arrays, whatever scikit-learn is configured to return
    if fit:
        transformer.fit(flat(observations))
    sentence = f"{words} {transformer.describe()}."
    if name not in ("one-hot", "identity"):
        taken = "given" if transformer.low is not None and transformer.high is not None else "taken from the data"
        sentence += f" Ranges are {taken}; observations outside them count as at their edge."
    if len(shape) > 1:
        sentence += f" Observations of {' x '.join(map(str, shape))} numbers are flattened."
    spec = {"name": name, "options": transformer.options(), "shape": list(shape), "sentence": sentence}
    return Fitted(transformer, shape, width_of(transformer, observations[0]), sentence, spec)


def custom(transformer: Any, observations: Array) -> Fitted:
    """A transformer of the user's own: as it is where it is fitted, else a clone fitted here."""
    kind, ready = type(transformer).__name__, is_fitted(transformer)
    if not ready:
        transformer = clone(transformer)
        transformer.fit(columns_of(observations))
    columns = width_of(transformer, observations[0])
    how = "fitted before, used as it is" if ready else f"fitted to {len(observations)} observations"
    return Fitted(transformer, observations.shape[1:], columns, f"Used {kind} ({columns} features), {how}.")


def given(function: Callable[..., Any], observations: Array) -> Fitted:
    """A callable, used as given."""
    columns = width_of(function, observations[0])
    name = getattr(function, "__name__", type(function).__name__)
    return Fitted(
        function, observations.shape[1:], columns, f"Used the callable {name} ({columns} features) as given."
    )  # fmt: skip


def width_of(transformer: Any, observation: Array) -> int:
    """How many features it gives, tried on one observation."""
    return int(feature_rows(transformer, np.asarray(observation)[None]).shape[1])


def feature_rows(transformer: Any, observations: Array, columns: int | None = None) -> Any:
    """Rows of a fitted transformer or of a callable, checked to be a matrix with one row an observation."""
    if name_of(transformer) is not None:
        return transformer.transform(flat(observations))
    if isinstance(transformer, Transformer):
        rows = transformer.transform(columns_of(observations))
    else:
        rows = transformer(observations)
    rows = sparse.csr_array(rows) if sparse.issparse(rows) else np.asarray(rows)
    if rows.ndim != 2 or rows.shape[0] != len(observations):
        raise ValueError(
            f"features gave an array of shape {rows.shape} for {len(observations)} observations. "
            "It must give a matrix with one row an observation."
        )
    if columns is not None and rows.shape[1] != columns:
        raise ValueError(
            f"features gave {rows.shape[1]} columns, but {columns} before. "
            "The number must not depend on which observations are asked for."
        )
    return rows


def flat(observations: Array) -> Array:
    """One row of numbers an observation."""
    return observations.reshape(len(observations), math.prod(observations.shape[1:]))


def columns_of(observations: Array) -> Array:
    """States by number as one column, for scikit-learn; anything else as it is."""
    return observations[:, None] if observations.ndim == 1 else observations


def name_of(transformer: Any) -> str | None:
    """The name of a built-in transformer, None for any other object."""
    kind = type(transformer)
    for name, (module, title) in BUILT_IN.items():
        if kind.__module__ == f"valuefit.features.{module}" and kind.__name__ == title:
            return name
    return None


def is_fitted(transformer: Any) -> bool:
    """Whether a transformer is fitted; one of scikit-learn that needs no fitting counts as fitted."""
    base = sys.modules.get("sklearn.base")
    if base is None or not isinstance(transformer, base.BaseEstimator):
        return has_fitted_attributes(transformer)
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(transformer)
    except NotFittedError:
        return False
    return True


def clone(transformer: Any) -> Any:
    """A copy to fit, so that the user's object stays unchanged; a fitted transformer stays fitted."""
    return copy.deepcopy(transformer) if is_fitted(transformer) else unfitted_copy(transformer)


def unfitted_copy(transformer: Any) -> Any:
    """`sklearn.base.clone`, without importing scikit-learn for objects that do not come from it."""
    if isinstance(transformer, FeatureTransformer):
        parameters = transformer.get_params(deep=False)
        return type(transformer)(**{name: unfitted_copy(value) for name, value in parameters.items()})
    base = sys.modules.get("sklearn.base")
    return copy.deepcopy(transformer) if base is None else base.clone(transformer, safe=False)
