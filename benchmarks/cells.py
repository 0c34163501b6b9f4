"""The cells of the benchmark grid: synthetic problems of many kinds and sizes.

`CELLS` maps a name to a `Cell`. `cell.make(seed)` generates its log and returns the `Problem`; the grid uses seed 0,
and another seed gives a held-out log with the same features. `cell.shrunk()` is a small version, to test the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import scipy.signal as signal

import valuefit as vf
from valuefit.datasets.ar1 import ar1_log, fourier_features
from valuefit.datasets.mdp import random_mdp
from valuefit.features import Tiles

Array = np.ndarray[Any, np.dtype[Any]]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A problem made by `build(n, d, seed, **settings)`; `kind` groups cells, `about` describes the difficulty."""

    name: str
    kind: str
    about: str
    build: Callable[..., vf.Problem]
    n: int
    d: int
    settings: tuple[tuple[str, Any], ...] = ()
    sparse: bool = False
    held_out: bool = False  # whether a held-out log is generated too, which large cells have no memory for
    unsolved: bool = False  # whether no method is known to reach the gap in the time given

    def make(self, seed: int = 0) -> vf.Problem:
        return self.build(self.n, self.d, seed, **dict(self.settings))

    def shrunk(self) -> Cell:
        """A small problem of the same kind, to test the code."""
        n = min(self.n, 3000)
        if self.sparse:
            return replace(self, n=n, d=min(self.d, 300))
        return replace(self, n=n, d=min(self.d, 30))


def mdp(n: int, d: int, seed: int, *, ridge: str = "0") -> vf.Problem:
    """The paper's Random MDP: 400 states, d - 1 uniform features and a constant; ridge is "0", "sqrt(L)" or "L"."""
    source = random_mdp(features=d - 1)
    log = source.log(n, seed=seed)
    plain = vf.Problem(log, source.rows, discount=0.95)
    if ridge == "0":
        return plain
    L = vf.Theory(plain).L_rho
    return vf.Problem(log, source.rows, discount=0.95, ridge=math.sqrt(L) if ridge == "sqrt(L)" else L)


def fourier(
    n: int, d: int, seed: int, *, spread: float, discount: float = 0.95, trace: float = 0.0, tail: float = 0.0,
    memory: float = 0.9,
) -> vf.Problem:  # fmt: skip
    """Random Fourier features of an AR(1) process. tail: standard deviation of the logarithm of ratios of mean 1."""
    log = ar1_log(n, memory=memory, seed=seed)
    if tail:
        logs = tail * np.random.default_rng(seed + 1).standard_normal(n) - tail**2 / 2
        log = replace(log, ratio=np.exp(logs))
    return vf.Problem(log, fourier_features(d, spread=spread), discount=discount, trace=trace)


def polynomials(n: int, d: int, seed: int, *, dimensions: int) -> vf.Problem:
    """The first d monomials, by degree, of an AR(1) process scaled to [-1, 1]."""
    log = ar1_log(n, dimensions=dimensions, seed=seed)
    degree, powers = 0, [()]
    while len(powers) < d:
        degree += 1
        powers += combinations_with_replacement(range(dimensions), degree)

    def rows(x: Array) -> Array:
        x = x / 5.0  # a fixed range, so that a held-out log has the same features
        return np.stack([np.prod(x[:, list(power)], axis=1) for power in powers[:d]], axis=1)

    return vf.Problem(log, rows, discount=0.95)


def radial(n: int, d: int, seed: int, *, width: float) -> vf.Problem:
    """Gaussian radial bases on a square grid over two dimensions, and a constant; wide ones are nearly collinear."""
    side = math.isqrt(d - 1)
    log = ar1_log(n, dimensions=2, seed=seed)
    axis = np.linspace(-2, 2, side)
    centres = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    scale = width * 4 / max(side - 1, 1)

    def rows(x: Array) -> Array:
        squared = (x**2).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres**2).sum(axis=1)
        return np.column_stack([np.exp(-squared / (2 * scale**2)), np.ones(len(x))])

    return vf.Problem(log, rows, discount=0.95)


def student(n: int, d: int, seed: int, *, freedom: float) -> vf.Problem:
    """AR(1) rows with multivariate Student-t noise (one scale per step, so whole rows are large), and a constant."""
    rng = np.random.default_rng(seed)
    weights = np.random.default_rng(1000).standard_normal(d - 1) / math.sqrt(d)
    noise = rng.standard_normal((n + 1, d - 1)) / np.sqrt(rng.chisquare(freedom, n + 1) / freedom)[:, None]
    x = signal.lfilter([1.0], [1.0, -0.7], noise, axis=0)
    rows = np.column_stack([x, np.ones(n + 1)])
    reward = x[:-1] @ weights + rng.standard_normal(n)
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, 0.95)


def gaussian(n: int, d: int, seed: int) -> vf.Problem:
    """AR(1) rows with Gaussian noise, and a constant: a well-conditioned problem, in which only overhead matters."""
    rng = np.random.default_rng(seed)
    x = signal.lfilter([1.0], [1.0, -0.7], rng.standard_normal((n + 1, d - 1)), axis=0)
    reward = x[:-1, :5].sum(axis=1) + rng.standard_normal(n)
    return vf.Problem.from_rows(
        np.column_stack([x, np.ones(n + 1)]), np.arange(n), np.arange(1, n + 1), reward, 0.95
    )  # fmt: skip


def tiles(
    n: int, d: int, seed: int, *, dimensions: int, tilings: int, hashed: bool = False, discount: float = 0.95
) -> vf.Problem:
    """Tile coding of a slow AR(1) process, about d columns; the reward is smooth in the state, plus noise."""
    log = ar1_log(n, dimensions=dimensions, memory=0.95, seed=seed)
    x = log.observations[log.now]
    noise = np.random.default_rng(seed + 1).standard_normal(n)
    reward = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, -1] + 0.5 * noise
    bins = max(2, round((d / tilings) ** (1 / dimensions)))
    coder = Tiles(tilings, bins, low=-3.0, high=3.0, hashed=d if hashed else None)
    return vf.Problem(replace(log, reward=reward), coder, discount=discount)


# (n, d) at which `auto` must not be slower than textbook LSTD; those below 50 features have no target, only a number
DIRECT_SIZES = (
    (20_000, 20), (100_000, 20), (20_000, 50), (100_000, 50), (100_000, 200), (300_000, 200), (60_000, 500),
    (60_000, 1000),
)  # fmt: skip


def _cells() -> list[Cell]:
    found = [
        Cell(
            f"random-mdp ridge={ridge}", "random-mdp", "few distinct rows; features far from centred", mdp,
            20_000, 201, (("ridge", ridge),), held_out=True,
        )
        for ridge in ("0", "sqrt(L)", "L")
    ]  # fmt: skip
    for n, d, well, badly in (
        (100_000, 200, 2.0, 0.7),
        (1_000_000, 200, 2.0, 0.7),
        (100_000, 1000, 3.0, 1.5),
        (50_000, 4000, 4.5, 2.9),
    ):
        size = f"({n:.0e}, {d})".replace("e+0", "e")
        held_out = n * d <= 20_000_000
        for word, spread in (("well", well), ("badly", badly)):
            about = f"random Fourier features, {word} conditioned"
            found.append(
                Cell(
                    f"fourier {word} {size}", "fourier", about, fourier, n, d, (("spread", spread),), held_out=held_out
                )
            )
    for n, d in DIRECT_SIZES:
        size = f"({n:.0e}, {d})".replace("e+0", "e")
        found.append(
            Cell(
                f"direct {size}", "direct", "Gaussian rows; textbook LSTD and auto in alternating runs", gaussian, n, d
            )
        )
    found += [
        Cell("polynomials (1e5, 84)", "polynomials", "monomials up to degree 6 in 3 dimensions", polynomials,
             100_000, 84, (("dimensions", 3),), held_out=True),
        Cell("rbf collinear (1e5, 101)", "rbf", "nearly collinear centres", radial,
             100_000, 101, (("width", 1.05),), held_out=True),
        Cell("student-t (1e5, 200)", "student-t", "rows with a tail of 2.5 degrees of freedom", student,
             100_000, 200, (("freedom", 2.5),), held_out=True),
        Cell("lognormal ratios (1e5, 200)", "ratios", "importance ratios exp(N(-1/2, 1))", fourier,
             100_000, 200, (("spread", 1.5), ("tail", 1.0)), held_out=True),
        Cell("discount 0.99 (1e5, 200)", "discount", "slow process, discount 0.99", fourier,
             100_000, 200, (("spread", 1.5), ("discount", 0.99), ("memory", 0.95)), held_out=True),
        Cell("trace 0.8 (1e5, 200)", "trace", "eligibility traces, lambda 0.8", fourier,
             100_000, 200, (("spread", 1.5), ("trace", 0.8)), held_out=True),
        Cell("tiles (1e5, 1e4)", "tiles", "8 tilings of 2 dimensions", tiles,
             100_000, 10_000, (("dimensions", 2), ("tilings", 8)), sparse=True),
        Cell("tiles (1e6, 1e5)", "tiles", "8 tilings of 3 dimensions", tiles,
             1_000_000, 100_000, (("dimensions", 3), ("tilings", 8)), sparse=True),
        Cell("tiles hashed (1e6, 1e6)", "tiles", "16 tilings of 4 dimensions, hashed", tiles,
             1_000_000, 1_000_000, (("dimensions", 4), ("tilings", 16), ("hashed", True)), sparse=True, unsolved=True),
    ]  # fmt: skip
    return found


CELLS: dict[str, Cell] = {cell.name: cell for cell in _cells()}
