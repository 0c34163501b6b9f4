"""Candidates of `select`: settings of `evaluate` as a list or a grid, validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from valuefit.features.registry import Fitted
from valuefit.messages import shown
from valuefit.problem.arguments import fraction, ridge_of

Candidate = dict[str, Any]
FEATURES = "auto"  # of a candidate that names none
NUMBERS = {"trace": 0.0, "ridge": 0.0}  # other settings of a candidate, and their values if it does not name them


def candidates_of(given: Any) -> list[Candidate]:
    """Candidates from a list of settings, or from a grid: a dict with a list of values for each setting."""
    if isinstance(given, Mapping):
        for name, choices in given.items():
            if isinstance(choices, str) or not isinstance(choices, Sequence) or not len(choices):
                raise ValueError(
                    f"The grid has {shown(choices)} for {shown(name)}; give a list of values for each setting, as in "
                    "{'features': ['fourier:order=2', 'fourier:order=4'], 'trace': [0.0, 0.5]}."
                )
        given = [dict(zip(given, choice, strict=True)) for choice in product(*given.values())]
    if isinstance(given, str) or not isinstance(given, Sequence) or not len(given):
        raise ValueError(
            f"candidates is {shown(given)}; give a list of settings, as in [{{'features': 'kernel'}}, {{'features': "
            "'fourier:order=3', 'trace': 0.5}], or a dict with a list of values for each setting."
        )
    return [_complete(settings) for settings in given]


def _complete(settings: Any) -> Candidate:
    """With a value for each setting; numbers are validated."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"A candidate is {shown(settings)}; give a dict of settings, as in {{'features': 'kernel'}}.")
    allowed = ["features", *NUMBERS]
    for name in settings:
        if name not in allowed:
            raise ValueError(f"A candidate sets {shown(name)}; candidates differ in {', '.join(allowed)} only.")
    given = {"features": FEATURES, **NUMBERS, **settings}
    return {**given, "trace": fraction("trace", given["trace"]), "ridge": ridge_of(given["ridge"])}


def described(settings: Candidate) -> str:
    """A candidate in words; settings that have their default are left out."""
    features = settings["features"]
    name = features if isinstance(features, str) else getattr(features, "__name__", None)
    if name is None:
        name = features.sentence if isinstance(features, Fitted) else shown(features)
    numbers = [f"{key} {settings[key]:g}" for key, default in NUMBERS.items() if settings[key] != default]
    return ", ".join([name, *numbers])


def by_features(candidates: list[Candidate]) -> list[list[int]]:
    """Positions of the candidates that have the same feature rows, in the order in which they are compared."""
    groups: dict[Any, list[int]] = {}
    for place, settings in enumerate(candidates):
        features = settings["features"]
        name = features if isinstance(features, str) else id(features)
        groups.setdefault(name, []).append(place)

    def order(place: int) -> tuple[float, ...]:
        return tuple(float(candidates[place][name]) for name in NUMBERS)

    return [sorted(places, key=order) for places in groups.values()]
