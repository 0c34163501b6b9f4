"""Features by name and as objects, with odd options and observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse

import valuefit as vf
from fuzz.mutators import Rng, chance, odd_array, pick, scalar
from fuzz.outcome import RIGHT, ask, expect
from fuzz.runner import Target

OPTIONS = {
    "kernel": ("landmarks", "kernel", "length_scale", "periodic", "categorical", "seed", "low", "high"),
    "tiles": ("tilings", "bins", "displacement", "hashed", "wrap", "low", "high"),
    "fourier": ("order", "max_features", "low", "high"),
    "rbf": ("centres", "bandwidth", "seed", "low", "high"),
    "polynomial": ("degree", "max_features", "low", "high"),
    "one-hot": ("categories", "unknown"),
    "identity": (),
    "auto": ("order",),
    "nonsense": ("x",),
}
OPTION_TEXTS = [
    "5", "0", "-1", "1e9", "1000000000", "1000000000", "1000000000", "10" * 20, "9" * 400, "0.5", "nan", "None",
    "True", "[4,8]", "[1]", "[]",
    "'a'", "-" * 5000 + "1", "(" * 500,
    "[" * 200 + "]" * 200, "1e400", "inf", "[1e300,2]", "abc", "", "__import__('os')", "1j", "{}", "2**99", "\x00",
    "\x1b[31m", "7" * 5000, "gaussian", "laplace", "{0:2.5}", "{'0':1e-9}", "[0]", "[[1],[2]]", "1e-12", "(0,1)",
]  # fmt: skip
OBJECT_NAMES = {"rbf": "RBF", "one-hot": "OneHot"}  # others are the name with a capital letter
NORM_TOL = 1e-6  # of rows of kernel features, whose triangular solves have a condition of at most 1e6 or so


def feature_spec(rng: Rng) -> str:
    """Text such as "tiles:bins=4", with odd options."""
    name = pick(rng, list(OPTIONS))
    chosen = rng.permutation(OPTIONS[name])[: int(rng.integers(0, 3))]
    parts = [f"{option}={pick(rng, OPTION_TEXTS)}" for option in chosen]
    return f"{name}:{','.join(parts)}" if parts else name


def feature_object(rng: Rng, observations: Any) -> Any:
    """An unfitted transformer with odd options."""
    name = pick(rng, [name for name in OPTIONS if name not in ("auto", "nonsense")])
    settings = {option: scalar(rng) for option in OPTIONS[name] if chance(rng, 0.3)}
    if name == "kernel" and chance(rng, 0.7):
        likely: dict[str, list[Any]] = {
            "landmarks": [odd_array(rng, np.atleast_1d(np.asarray(observations, object))[:3]), 1, 5, 12, 10**6],
            "kernel": ["matern", "gaussian", "laplace", "Gaussian"],
            "length_scale": [odd_array(rng, np.ones(2)), 0.3, 1e-12, 1e12, [1.0, 1e-9]],
            "periodic": [{0: 1.0}, {"0": 2}, {0: scalar(rng)}, {5: 1.0}, {"x": 1}, {0: 1e-300}, [0], {None: 1}],
            "categorical": [[0], (0, 0), 0, [True], [9], ["0"], np.array([0]), {0}],
            "low": [odd_array(rng, np.zeros(2)), 0.0, -1e300],
            "high": [odd_array(rng, np.ones(2)), 0.0, 1e300],
        }
        settings = {option: pick(rng, values) for option, values in likely.items() if chance(rng, 0.4)}
    made = getattr(vf.features, OBJECT_NAMES.get(name, name.title()))
    return ask(lambda: made(**settings))


def features_case(rng: Rng, folder: Path) -> str | None:
    """`features.make` by text or by object on odd observations; rows are finite, repeatable and stored exactly."""
    labels = chance(rng, 0.3)
    observations: Any = (
        rng.integers(0, 4, 12) if labels else np.round(rng.normal(size=(12, int(rng.integers(1, 4)))), 2)
    )
    if chance(rng, 0.25):
        observations = odd_array(rng, observations)
    if labels and chance(rng, 0.2):
        observations = 2**60 + 3 * rng.integers(0, 4, 12)
    spec: Any = feature_spec(rng)
    if chance(rng, 0.3):
        spec = feature_object(rng, observations)
    fitted, sentence = ask(vf.features.make, spec, observations)
    expect(sentence.isprintable() and len(sentence) < 1000, "its description is not a printable sentence")
    made = ask(fitted.transform, observations)
    expect(
        made.ndim == 2 and made.shape[1] == fitted.columns, f"rows of shape {made.shape}, not {fitted.columns} features"
    )
    rows = _dense(made)
    expect(np.isfinite(rows).all(), "a feature is not finite")
    if fitted.spec is not None:
        again = ask(vf.features.from_spec, fitted.spec)
        expect(np.array_equal(_dense(ask(again.transform, observations)), rows), "the stored features give other rows")
    if (
        isinstance(observations, np.ndarray)
        and observations.ndim == 1
        and observations.dtype.kind in "iu"
        and "one-hot" in str(spec)
    ):
        expect(len(np.unique(rows, axis=0)) == len(np.unique(observations)), "different states have equal rows")
        return RIGHT
    if isinstance(fitted.transformer, vf.features.Kernel):
        _check_kernel(fitted.transformer, rows)
        return RIGHT
    ask(fitted.transform, odd_array(rng, np.asarray(observations)))
    return None


def _check_kernel(kernel: Any, rows: Any) -> None:
    """The rows approximate k(x, x) = 1 from below, and at a landmark they give it exactly."""
    norms = np.linalg.norm(rows[:, 1:], axis=1)
    expect((norms <= 1 + NORM_TOL).all(), f"a row of kernel features has norm {norms.max()}")
    if len(kernel.landmarks_):
        own = np.linalg.norm(ask(kernel.transform, kernel.landmarks_)[:, 1:], axis=1)
        expect((np.abs(own - 1) <= NORM_TOL).all(), f"the row of a landmark has norm {own[np.abs(own - 1).argmax()]}")


def _dense(rows: Any) -> Any:
    """The columns of feature rows that are not 0, as a dense array."""
    if not sparse.issparse(rows):
        return np.asarray(rows)
    columns = sparse.csc_array(rows)
    return columns[:, np.unique(columns.nonzero()[1])].toarray()


TARGETS = [Target("features", features_case)]
