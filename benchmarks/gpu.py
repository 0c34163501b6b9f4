"""Speed on one GPU, next to what its memory and matrix units do in the same run.

`python -m benchmarks.gpu` needs torch and a CUDA device; it prints the table and writes `benchmarks/gpu.md`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.signal import lfilter

import valuefit as vf
from valuefit.linalg.device import tensor_cores
from valuefit.problem.placement import Placement

HERE = Path(__file__).parent
DEVICE = "cuda"
STEPS, FEATURES = 1_000_000, 2048
WIDE_STEPS, WIDE_FEATURES = 200_000, 16_384
DEVICE_MEMORY = 8 << 30
KERNEL_STEPS, LANDMARKS = 10_000_000, 2000
EPISODE = 200  # steps


class Figure(NamedTuple):
    """A row of the table."""

    name: str
    value: str
    target: str = ""
    missed: bool = False


def seconds_of(work: Callable[[], Any], repeats: int = 3) -> float:
    """Median time of `work` on the device, after one run that is not measured."""
    work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def states(rows: int, dimensions: int = 8, seed: int = 0) -> np.ndarray:
    """An AR(1) process with unit variance."""
    noise = np.random.default_rng(seed).standard_normal((rows, dimensions))
    return lfilter([np.sqrt(1 - 0.95**2)], [1, -0.95], noise, axis=0)


def random_features(observations: np.ndarray, d: int, dtype: torch.dtype) -> Any:
    """A constant and random Fourier features on the device."""
    rng = torch.Generator(DEVICE).manual_seed(1)
    W = torch.randn(observations.shape[1], d, generator=rng, device=DEVICE, dtype=torch.float64)
    phase = 2 * np.pi * torch.rand(d, generator=rng, device=DEVICE, dtype=torch.float64)
    rows = torch.empty((len(observations), d), dtype=dtype, device=DEVICE)
    for start in range(0, len(rows), 1 << 16):
        block = torch.from_numpy(observations[start : start + (1 << 16)]).to(DEVICE)
        rows[start : start + (1 << 16)] = torch.cos(torch.addmm(phase, block, W)).to(dtype)
    rows[:, 0] = 1.0
    return rows


def trajectory(steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations of episodes with one row more than steps, the rows of steps, and the episodes."""
    now = np.arange(steps) + np.arange(steps) // EPISODE
    return states(int(now[-1]) + 2), now, np.arange(steps) // EPISODE


def problem_of(steps: int, d: int, dtype: torch.dtype = torch.float64) -> Any:
    observations, now, episode = trajectory(steps)
    reward = np.sin(observations[now]).sum(axis=1) + np.random.default_rng(2).standard_normal(steps)
    rows = random_features(observations, d, dtype)
    return vf.Problem.from_rows(rows, now, now + 1, reward, 0.95, episode=episode)


class Rates(NamedTuple):
    """Bytes a second of a copy, and operations a second of the Gram matrix in float64 and in TF32."""

    copy: float
    double: float
    single: float


def measured_rates(rows: Any) -> Rates:
    count = 2.0 * rows.shape[0] * rows.shape[1] ** 2
    single = rows.float()
    other = torch.empty_like(single)
    copy = 2 * single.nbytes / seconds_of(lambda: other.copy_(single))
    with tensor_cores():
        return Rates(copy, count / seconds_of(lambda: rows.T @ rows), count / seconds_of(lambda: single.T @ single))


def solved(problem: Any, solver: Any, repeats: int = 3, **options: Any) -> tuple[float, Any]:
    """Seconds of a solve and its result, without what an earlier solve left behind."""
    kept = {name: value for name, value in vars(problem).items() if name not in ("A", "C", "second_moment", "b")}
    results = []

    def work() -> None:
        problem.__dict__.clear()
        problem.__dict__.update(kept)
        results.append(vf.solve(problem, solver, **options))

    return seconds_of(work, repeats), results[-1]


def text_of(seconds: float, result: Any) -> str:
    return f"{seconds:.3f} s, gap {result.gap:.0e}, {result.passes:.1f} passes, {result.status}"


def in_float64(problem: Any, rates: Rates) -> Iterator[Figure]:
    n, d, size = STEPS, FEATURES, f"({STEPS:,}, {FEATURES:,})"
    seconds = seconds_of(problem.cross_moment) + seconds_of(problem.second_moment_on_device)
    share = 3.0 * n * d**2 / seconds / rates.double
    yield Figure("moments A, C, float64: part of the Gram rate", f"{share:.2f}", "at least 0.85", share < 0.85)
    one = seconds_of(lambda: problem.residual(np.ones(d)))
    yield Figure("b - A theta", f"{1e3 * one:.1f} ms, {problem.phi.matrix.nbytes / one / 1e12:.2f} TB/s")
    both = seconds_of(lambda: problem.B(np.ones(d), np.ones(d)))
    yield Figure("B(theta, w)", f"{1e3 * both:.1f} ms, {problem.phi.matrix.nbytes / both / 1e12:.2f} TB/s")
    seconds, found = solved(problem, "krylov", tol=1e-8)
    yield Figure(f"krylov {size}, float64, to 1e-8", text_of(seconds, found), "at most 0.15 s", seconds > 0.15)
    seconds, lstd = solved(problem, "lstd")
    yield Figure(f"lstd {size}, float64", text_of(seconds, lstd))
    seconds, found = solved(problem, vf.solvers.LSTD(gram="float32"))
    off = np.linalg.norm(found.theta - lstd.theta) / np.linalg.norm(lstd.theta)
    text = f"{text_of(seconds, found)}, {off:.0e} from float64"
    yield Figure(f"lstd {size}, A in TF32, refined in float64", text, "within 1e-8", off > 1e-8)
    seconds, found = solved(problem, "pdbg", tol=1e-6)
    yield Figure(f"pdbg {size}, float64, to 1e-6", text_of(seconds, found))


def in_float32(rates: Rates) -> Iterator[Figure]:
    problem, size = problem_of(STEPS, FEATURES, torch.float32), f"({STEPS:,}, {FEATURES:,})"
    seconds = seconds_of(lambda: problem.cross_moment(torch.float32))
    share = 2.0 * STEPS * FEATURES**2 / seconds / rates.single
    yield Figure("moment A, TF32, float32 rows: part of the Gram rate", f"{share:.2f}", "at least 0.85", share < 0.85)
    seconds, found = solved(problem, "krylov", tol=1e-8)
    yield Figure(f"krylov {size}, float32 rows, to 1e-8", text_of(seconds, found))


def wide() -> Figure:
    seconds, found = solved(problem_of(WIDE_STEPS, WIDE_FEATURES), "krylov", repeats=1, tol=1e-8)
    name = f"krylov ({WIDE_STEPS:,}, {WIDE_FEATURES:,}), float64, to 1e-8"
    return Figure(name, text_of(seconds, found), "solved", found.status != "converged")


def streamed() -> Figure:
    """LSTD with rows that stay in the memory of the host."""
    observations, now, episode = trajectory(STEPS)
    reward = np.sin(observations[now]).sum(axis=1) + np.random.default_rng(2).standard_normal(STEPS)
    rows = random_features(observations, FEATURES, torch.float64).cpu().numpy()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    memory = vf.Problem.from_rows(rows, now, now + 1, reward, 0.95, episode=episode)
    problem = Placement(DEVICE, DEVICE_MEMORY)(memory)
    seconds, found = solved(problem, "lstd", repeats=1)
    one = seconds_of(lambda: problem.phi.dot(torch.ones(FEATURES, dtype=torch.float64, device=DEVICE)), repeats=1)
    peak = torch.cuda.max_memory_allocated() / 2**30
    name = f"lstd, rows of {rows.nbytes / 2**30:.1f} GiB in host memory, device_memory {DEVICE_MEMORY / 2**30:.0f} GiB"
    value = f"{text_of(seconds, found)}, read at {rows.nbytes / one / 1e9:.0f} GB/s, peak {peak:.1f} GiB"
    return Figure(name, value, "peak at most 8 GiB", peak > 8)


def kernel_features() -> Figure:
    """LSTD with kernel features that are computed whenever they are read."""
    observations = states(KERNEL_STEPS)
    reward = np.sin(observations).sum(axis=1) + np.random.default_rng(2).standard_normal(KERNEL_STEPS)
    last = np.arange(KERNEL_STEPS) % EPISODE == EPISODE - 1
    log = vf.Transitions.from_arrays(observations, reward, terminated=last)
    kernel = vf.features.Kernel(LANDMARKS).fit(observations[:: KERNEL_STEPS // 20_000])
    problem = vf.Problem.from_kernel(log, kernel, device=DEVICE, discount=0.95)
    seconds, found = solved(problem, "lstd", repeats=1)
    name = f"lstd, kernel features on the fly ({KERNEL_STEPS:,} steps, {problem.d - 1:,} landmarks), float64"
    return Figure(name, text_of(seconds, found), "at most 8 s", seconds > 8)


def figures() -> Iterator[Figure]:
    problem = problem_of(STEPS, FEATURES)
    rates, size = measured_rates(problem.phi.matrix), f"({STEPS:,}, {FEATURES:,})"
    yield Figure("copy", f"{rates.copy / 1e12:.2f} TB/s")
    yield Figure(f"Gram matrix {size}, float64", f"{rates.double / 1e12:.1f} TFLOP/s")
    yield Figure(f"Gram matrix {size}, TF32", f"{rates.single / 1e12:.0f} TFLOP/s")
    yield from in_float64(problem, rates)
    del problem
    torch.cuda.empty_cache()
    yield from in_float32(rates)
    torch.cuda.empty_cache()
    yield wide()
    torch.cuda.empty_cache()
    yield kernel_features()
    torch.cuda.empty_cache()
    yield streamed()
    torch.cuda.empty_cache()
    yield same_as_cpu()


def same_as_cpu(steps: int = 20_000, d: int = 300) -> Figure:
    """LSTD of the same rows on the device and on the CPU."""
    problem = problem_of(steps, d)
    _, now, episode = trajectory(steps)
    reward = problem.steps.reward.cpu().numpy()[now]
    rows = problem.phi.matrix.cpu().numpy()
    cpu = vf.solve(vf.Problem.from_rows(rows, now, now + 1, reward, 0.95, episode=episode), "lstd").theta
    off = np.linalg.norm(vf.solve(problem, "lstd").theta - cpu) / np.linalg.norm(cpu)
    return Figure(f"lstd ({steps:,}, {d}): relative difference from the CPU", f"{off:.0e}", "at most 1e-8", off > 1e-8)


def main() -> None:
    lines = [
        "# Speed on a GPU",
        "",
        f"Written by `python -m benchmarks.gpu` on one {torch.cuda.get_device_name()} with torch {torch.__version__}. "
        "Medians of three runs after one that is not counted; the rows are on the device before the clock starts. "
        f"Episodes of {EPISODE} steps, a constant and random Fourier features of 8 dimensions, discount 0.95.",
        "",
        "| figure | value | target | |",
        "|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for figure in figures():
        lines.append(f"| {figure.name} | {figure.value} | {figure.target} | {'missed' if figure.missed else ''} |")
        print(lines[-1], flush=True)
    (HERE / "gpu.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
