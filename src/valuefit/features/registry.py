"""Features by name, as objects or chosen automatically: fit them, describe them and store them as a spec."""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sparse

from valuefit.data.transitions import Transitions
from valuefit.data.validation import array_of, check_observations
from valuefit.features import built_in, class_of
from valuefit.features.featurise import check_shape
from valuefit.features.kernel import (
    ADDITIVE_SHARE,
    EFFECTIVE_STEPS_PER_LANDMARK,
    MAX_JOINT_COLUMNS,
    MAX_LANDMARKS,
    STEPS_PER_LANDMARK,
)
from valuefit.features.transformer import FeatureTransformer, has_fitted_attributes
from valuefit.memory import fits
from valuefit.messages import said, shown, user_errors
from valuefit.threads import user_code
from valuefit.typing import Array

MAX_OBSERVATION_NUMBERS = 4096  # limit of built-in features; larger observations (images) need an encoder
# "auto" takes one landmark for 20 steps: with 40 the policy values of seven tasks were less accurate, with 10 some
# standard errors exploded. Where that costs more operations than this, some 40 s of processor time, it takes fewer.
MAX_AUTO_OPERATIONS = 4e11  # steps times weights squared

MAX_FIT_STEPS = 200_000  # whose observations features are fitted to; with more, quantiles hardly change


@runtime_checkable
class Transformer(Protocol):
    """The methods that scikit-learn requires of a transformer."""

    def fit(self, X: Any, y: Any = None) -> Any: ...

    def transform(self, X: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class Fitted:
    """Fitted features: `fitted(observations)` or `fitted.transform(observations)` gives rows, dense or CSR.

    transformer: the fitted transformer, or the user's callable. shape: of one observation. columns: number of
    features. sentence: a description. spec: a JSON dict from which `from_spec` builds the same features; None for
    custom features.
    """

    transformer: Any
    shape: tuple[int, ...]
    columns: int
    sentence: str
    spec: dict[str, Any] | None = None

    def transform(self, observations: Any) -> Any:
        """Feature rows, one per observation."""
        return self.rows(check_observations("observations", observations))

    __call__ = transform

    def rows(self, observations: Array) -> Any:
        """`transform` of observations of a log, which were checked when it was made."""
        if observations.shape[1:] != self.shape:
            if math.prod(observations.shape[1:]) != 1 or math.prod(self.shape) != 1:
                raise ValueError(
                    f"The features were fitted on observations of shape {self.shape}, but these have shape "
                    f"{observations.shape[1:]}. Give an array of shape (n, {', '.join(map(str, self.shape))})."
                )
            observations = observations.reshape(len(observations), *self.shape)
        return feature_rows(self.transformer, observations, self.columns)

    def __repr__(self) -> str:
        return f"Fitted({self.columns} features of observations {self.shape}: {self.sentence})"


def names() -> list[str]:
    """The names that `make` accepts."""
    return ["auto", *built_in()]


def make(
    features: Any, data: Any, *, actions: int = 1, steps: int | None = None, effective_share: float = 1.0,
    indicators: int = 0,
) -> tuple[Fitted, str]:  # fmt: skip
    """Fit features to a log: returns the fitted features and a sentence that describes them.

    features: "auto" (chosen from the observations and the number of steps); a name in `names()`, with options as in
    "fourier:order=5,max_features=200"; a scikit-learn transformer or pipeline (valuefit fits a clone, or uses a fitted
    one unchanged); a callable that returns rows; or `Fitted` features.
    data: the log, whose distinct observations are fitted, or an array of observations. actions: the number of actions
    that get weights of their own (state-action values), which "auto" and "kernel" divide the steps by. steps: of the
    whole log, if the data are a sample of it. effective_share: of the steps, if they are weighted by ratios.
    indicators: how many numbers of an array of observations say where others were missing; a log knows them.
    Built-in features flatten observations with several axes (images). All except "identity" have a constant in
    their span.
    """
    if isinstance(features, Fitted):
        return features, features.sentence
    observations = check_observations("observations", data.observations if isinstance(data, Transitions) else data)
    if steps is None:
        steps = len(data) if isinstance(data, Transitions) else len(observations)
    if steps == 0:
        raise ValueError("There are no observations to fit features to.")
    if isinstance(features, type):
        raise ValueError(f"features is the class {features.__name__}; give an instance, {features.__name__}().")
    # kernel features follow the data, so they are fitted to every visit of an observation
    visited = observations[data.now[:: fit_stride(len(data))]] if isinstance(data, Transitions) else observations
    if isinstance(data, Transitions) and len(visited) < len(data) and not data.has_numbered_states:
        observations = visited
    if isinstance(features, str):
        indicators = data.indicators if isinstance(data, Transitions) else indicators
        count = StepCount(steps, actions, effective_share)
        fitted = fit_named(features, observations, visited, count, indicators)
    elif name_of(features) is not None:
        seen = visited if name_of(features) == "kernel" else observations
        fitted = fit_built_in(clone(features), seen, "Used", fit=not is_fitted(features))
    elif isinstance(features, Transformer):
        fitted = fit_custom(features, observations)
    elif callable(features):
        fitted = from_callable(features, observations)
    else:
        raise ValueError(
            f"features is {shown(features)}; give a name ({', '.join(names())}), a scikit-learn transformer "
            "or a callable."
        )
    return fitted, fitted.sentence


def fit_stride(steps: int) -> int:
    """Features are fitted to every k-th step: the smallest power of two that leaves at most MAX_FIT_STEPS."""
    stride = 1
    while -(-steps // stride) > MAX_FIT_STEPS:
        stride *= 2
    return stride


def from_spec(spec: dict[str, Any]) -> Fitted:
    """The features of a spec, without their data; their rows are the same to the last bit."""
    if not isinstance(spec, dict) or set(spec) != {"name", "options", "shape", "sentence"}:
        raise ValueError("A spec of features has exactly the keys name, options, shape and sentence.")
    transformer = build(str(spec["name"]), dict(spec["options"]))
    shape = tuple(int(length) for length in spec["shape"])
    if min(shape, default=1) < 1 or math.prod(shape) > MAX_OBSERVATION_NUMBERS:
        raise ValueError(f"Observations of shape {str(shape)[:40]} have no built-in features.")
    transformer.set_output(transform="default")
    transformer.fit(np.zeros((2, math.prod(shape))))  # the options fix everything that fit learns from data
    example = np.zeros(shape)
    if spec["name"] == "one-hot":  # 0 need not be among the categories
        example = np.reshape([categories[0] for categories in transformer.categories_], shape)
    return Fitted(transformer, shape, count_columns(transformer, example), str(spec["sentence"]), spec)


def fit_named(text: str, observations: Array, visited: Array, count: StepCount, indicators: int = 0) -> Fitted:
    """Fit the features "name" or "name:option=value,...".

    visited: the observation of each step. indicators: how many of its numbers say where others were missing; they do
    not count among the columns that decide whether the kernel has an additive part.
    """
    name, _, rest = text.partition(":")
    name, opening = name.strip().lower().replace("_", "-"), "Used"
    options = parse_options(text, rest)
    if name == "auto":
        if options:
            raise ValueError('features "auto" takes no options. Name the features to set them.')
        name, options, opening = choose(visited, count)
    elif name == "kernel" and "landmarks" not in options:
        options["landmarks"] = landmark_count(count)
    if name == "kernel" and indicators and options.get("additive") is None:
        columns = math.prod(visited.shape[1:]) - indicators
        options["additive"] = ADDITIVE_SHARE if columns > MAX_JOINT_COLUMNS else 0.0
    transformer = build(name, options)
    try:
        fitted = fit_built_in(transformer, visited if name == "kernel" else observations, opening)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"features {shown(text)} has an option of the wrong type: {said(error)}.") from None
    weights = fitted.columns * count.actions
    if weights * 2 > count.effective:
        assert fitted.spec is not None
        sentence = f"{fitted.sentence} That is {weights} features for {count}, too many to estimate well: use fewer."
        return replace(fitted, sentence=sentence, spec={**fitted.spec, "sentence": sentence})
    return fitted


def parse_options(text: str, rest: str) -> dict[str, Any]:
    """Parse "order=5,bins=[4, 8]"; values that are not Python literals are strings."""
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in re.split(r",(?![^\[(]*[\])])", rest))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(f"features {shown(text)}: {shown(part)} is not of the form option=value.")
        try:
            options[key.strip().replace("-", "_")] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # deep nesting raises the last two
            options[key.strip().replace("-", "_")] = value.strip()
    return options


def build(name: str, options: dict[str, Any]) -> Any:
    """An unfitted built-in transformer; errors suggest the closest name."""
    if name not in built_in():
        near = suggestion(name, names())
        raise ValueError(f"There are no features {shown(name)}{near}. There are {', '.join(names())}.")
    cls = class_of(name)
    allowed = list(inspect.signature(cls).parameters)
    for key in options:
        if key not in allowed:
            near, has = suggestion(key, allowed), f"It has {', '.join(allowed)}." if allowed else "It has none."
            raise ValueError(f"Features {name!r} have no option {key!r}{near}. {has}")
    return cls(**options)


def suggestion(word: str, known: list[str]) -> str:
    """ " (did you mean ...?)" if a known word is similar, else an empty string."""
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


@dataclass(frozen=True)
class StepCount:
    """How many weights a log can determine depends on its steps, on the actions that share them, and on its ratios."""

    steps: int
    actions: int = 1  # that have weights of their own
    effective_share: float = 1.0  # of the steps, by their ratios

    @property
    def effective(self) -> float:
        """The number of equally weighted steps with the same variance."""
        return self.steps * self.effective_share

    def __str__(self) -> str:
        counts_as = "" if self.effective_share == 1 else f", which their ratios make worth {self.effective:.0f},"
        return f"{self.steps} steps{counts_as}"


def choose(visited: Array, count: StepCount) -> tuple[str, dict[str, Any], str]:
    """The choice of "auto": name, options, and the beginning of the sentence.

    It depends on the observations, their number and the ratios, not on rewards, so intervals stay valid.
    """
    width = math.prod(visited.shape[1:])
    by_action = f" and {count.actions} actions" if count.actions > 1 else ""
    if width == 1 and visited.dtype.kind in "iub":
        states = len(np.unique(visited))
        if visited.ndim == 1 or states <= count.steps // STEPS_PER_LANDMARK:
            return "one-hot", {}, f'"auto", for {count.steps} steps over {states} states, chose'
    opening = f'"auto", for {count}{by_action} and {width} number{"s" * (width != 1)} per observation, chose'
    return "kernel", {"landmarks": landmark_count(count)}, opening


def landmark_count(count: StepCount) -> int:
    """As many landmarks as the log can pay for: one for 20 steps and 10 effective ones, in limited time and memory."""
    affordable = math.sqrt(MAX_AUTO_OPERATIONS / count.steps) / count.actions
    determined = min(count.steps / STEPS_PER_LANDMARK, count.effective / EFFECTIVE_STEPS_PER_LANDMARK) / count.actions
    landmarks = int(min(determined, MAX_LANDMARKS, affordable))
    while landmarks > 1 and not fits(2 * count.steps * landmarks * count.actions):
        landmarks //= 2
    return max(landmarks, 1)


def for_actions(fitted: Fitted, actions: int, steps: int) -> Fitted:
    """State features for state-action values: of kernel features as many landmarks as the steps can pay for."""
    if name_of(fitted.transformer) != "kernel":
        return fitted
    landmarks = fitted.transformer.landmarks_
    stride = max(math.ceil(len(landmarks) * STEPS_PER_LANDMARK * actions / steps), 1)
    if stride == 1:
        return fitted
    return with_landmarks(fitted, landmarks[::stride], landmarks.reshape(-1, *fitted.shape))


def for_states(fitted: Fitted, actions: int, log: Transitions) -> Fitted:
    """Features for state values: kernel features of state-action values with as many landmarks more as actions.

    Fewer where the ratios of the log make its steps worth less.
    """
    if name_of(fitted.transformer) != "kernel":
        return fitted
    most = int(len(log) * log.effective_share / EFFECTIVE_STEPS_PER_LANDMARK)
    count = max(min(actions * len(fitted.transformer.landmarks_), MAX_LANDMARKS, most), 1)
    return with_landmarks(fitted, count, log.observations[log.now])


def with_landmarks(fitted: Fitted, landmarks: Any, observations: Array) -> Fitted:
    """Kernel features with other landmarks, or another number of them, in the same units."""
    kernel = fitted.transformer
    other = {"landmarks": landmarks, "length_scale": None, "low": kernel.low_, "high": kernel.high_}
    return fit_built_in(type(kernel)(**{**kernel.get_params(), **other}), observations, "Used")


def fit_built_in(transformer: Any, observations: Array, opening: str, *, fit: bool = True) -> Fitted:
    """Fit a built-in transformer to flattened observations and write its spec."""
    name, shape = str(name_of(transformer)), observations.shape[1:]
    width = math.prod(shape)
    if width > MAX_OBSERVATION_NUMBERS:
        raise ValueError(
            f"An observation has {' x '.join(map(str, shape))} = {width} numbers, too many for {name!r} features "
            f"(at most {MAX_OBSERVATION_NUMBERS}). Give your own transformer, such as PCA or an encoder."
        )
    transformer.set_output(transform="default")  # solvers need arrays; ignore the configuration of scikit-learn
    if fit:
        transformer.fit(flat(observations))
    sentence = f"{opening} {transformer.describe()}."
    if name not in ("one-hot", "identity"):
        taken = "given" if transformer.low is not None and transformer.high is not None else "taken from the data"
        sentence += f" Ranges are {taken}; observations outside them are clipped."
    if len(shape) > 1:
        sentence += f" Observations of {' x '.join(map(str, shape))} numbers are flattened."
    spec = {"name": name, "options": transformer.options(), "shape": list(shape), "sentence": sentence}
    return Fitted(transformer, shape, count_columns(transformer, observations[0]), sentence, spec)


def fit_custom(transformer: Any, observations: Array) -> Fitted:
    """A user's transformer: unchanged if it is fitted, else a fitted clone."""
    class_name, ready = type(transformer).__name__, is_fitted(transformer)
    if not ready:
        transformer, given = clone(transformer), at_least_one_column(observations)
        with user_errors("features", given):
            transformer.fit(given)
    columns = count_columns(transformer, observations[0])
    how = "already fitted, used unchanged" if ready else f"fitted to {len(observations)} observations"
    return Fitted(transformer, observations.shape[1:], columns, f"Used {class_name} ({columns} features), {how}.")


def from_callable(function: Callable[..., Any], observations: Array) -> Fitted:
    """A user's callable as `Fitted` features."""
    columns = count_columns(function, observations[0])
    name = getattr(function, "__name__", type(function).__name__)
    return Fitted(
        function, observations.shape[1:], columns, f"Used the callable {name} ({columns} features) as given."
    )  # fmt: skip


def count_columns(transformer: Any, observation: Array) -> int:
    """The number of features, from the row of one observation."""
    return int(feature_rows(transformer, np.asarray(observation)[None]).shape[1])


def feature_rows(transformer: Any, observations: Array, columns: int | None = None) -> Any:
    """Rows of a fitted transformer or a callable; raises unless they are a matrix with one row per observation."""
    if name_of(transformer) is not None:
        return transformer.rows_of_checked(flat(observations))
    given = at_least_one_column(observations) if isinstance(transformer, Transformer) else observations
    with user_code, user_errors("features", given):
        rows = transformer.transform(given) if isinstance(transformer, Transformer) else transformer(given)
    rows = sparse.csr_array(rows) if sparse.issparse(rows) else array_of("features", rows, place="in row")
    check_shape("features", rows.shape, len(observations))
    if columns is not None and rows.shape[1] != columns:
        raise ValueError(
            f"features returned {rows.shape[1]} columns, but {columns} before. "
            "The number of columns must not depend on the observations."
        )
    return rows


def flat(observations: Array) -> Array:
    """Observations as a matrix with one row each."""
    return observations.reshape(len(observations), math.prod(observations.shape[1:]))


def at_least_one_column(observations: Array) -> Array:
    """Observations (n,) as one column (n, 1), for scikit-learn; others unchanged."""
    return observations[:, None] if observations.ndim == 1 else observations


def name_of(transformer: Any) -> str | None:
    """The name of a built-in transformer; None for any other object."""
    package, _, module = type(transformer).__module__.rpartition(".")
    name = module.replace("_", "-")
    return name if package == "valuefit.features" and name in built_in() else None


def is_fitted(transformer: Any) -> bool:
    """Whether a transformer is fitted; scikit-learn transformers that need no fitting count as fitted."""
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
    """`sklearn.base.clone`, without importing scikit-learn for objects of other libraries."""
    if isinstance(transformer, FeatureTransformer):
        parameters = transformer.get_params(deep=False)
        return type(transformer)(**{name: unfitted_copy(value) for name, value in parameters.items()})
    base = sys.modules.get("sklearn.base")
    try:
        return copy.deepcopy(transformer) if base is None else base.clone(transformer, safe=False)
    except TypeError as error:  # an option that is a generator, a lock or the like
        raise ValueError(f"The features cannot be copied to be fitted ({said(error)}). Give plain values.") from error
