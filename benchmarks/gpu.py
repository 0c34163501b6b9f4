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
from valuefit.gpu.device_moments import tensor_cores
from valuefit.gpu.on_device import Placement

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


def gram_rate(rows: Any) -> float:
    """Operations a second of the Gram matrix of these rows, in TF32 if they are float32."""
    with tensor_cores():
        return 2.0 * rows.shape[0] * rows.shape[1] ** 2 / seconds_of(lambda: rows.T @ rows)


def copy_rate(rows: Any) -> float:
    """Bytes a second, read and written."""
    other = torch.empty_like(rows)
    return 2 * rows.nbytes / seconds_of(lambda: other.copy_(rows))


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


def moments(problem: Any, name: str, work: Callable[[], Any], operations: float) -> Iterator[Figure]:
    """The rate of moments next to that of the Gram matrix, measured before and after: clocks change with the load."""
    before, seconds, after = gram_rate(problem.phi.matrix), seconds_of(work), gram_rate(problem.phi.matrix)
    share = operations / seconds / max(before, after)
    kind = "TF32" if problem.phi.matrix.dtype == torch.float32 else "float64"
    yield Figure(f"Gram matrix, {kind}, before and after", f"{before / 1e12:.0f} and {after / 1e12:.0f} TFLOP/s")
    value = f"{operations / seconds / 1e12:.0f} TFLOP/s, {share:.2f} of the larger"
    yield Figure(f"{name}, {kind}", value, "at least 0.85", share < 0.85)


def in_float64() -> Iterator[Figure]:
    n, d, size = STEPS, FEATURES, f"({STEPS:,}, {FEATURES:,})"
    problem = problem_of(STEPS, FEATURES)
    yield Figure("copy", f"{copy_rate(problem.phi.matrix) / 1e12:.2f} TB/s")

    def both_moments() -> None:
        problem.cross_moment()
        problem.second_moment_on_device()

    yield from moments(problem, f"moments A, C {size}", both_moments, 3.0 * n * d**2)
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
    seconds, found = solved(problem, "auto", tol=1e-8)
    yield Figure(f"auto {size}, float64, to 1e-8", f"{found.solver}, {text_of(seconds, found)}")
    for solver in ("pdbg", "svrg"):
        seconds, found = solved(problem, solver, repeats=1, tol=1e-6)
        yield Figure(f"{solver} {size}, float64, to 1e-6", text_of(seconds, found))


def in_float32() -> Iterator[Figure]:
    problem, size = problem_of(STEPS, FEATURES, torch.float32), f"({STEPS:,}, {FEATURES:,})"
    operations = 2.0 * STEPS * FEATURES**2
    yield from moments(problem, f"moment A {size}", lambda: problem.cross_moment(torch.float32), operations)
    seconds, found = solved(problem, "krylov", tol=1e-8)
    yield Figure(f"krylov {size}, float32 rows, to 1e-8", text_of(seconds, found))


def wide() -> Iterator[Figure]:
    seconds, found = solved(problem_of(WIDE_STEPS, WIDE_FEATURES), "krylov", repeats=1, tol=1e-8)
    name = f"krylov ({WIDE_STEPS:,}, {WIDE_FEATURES:,}), float64, to 1e-8"
    yield Figure(name, text_of(seconds, found), "solved", found.status != "converged")


def streamed() -> Iterator[Figure]:
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
    yield Figure(name, value, "peak at most 8 GiB", peak > 8)


def kernel_features() -> Iterator[Figure]:
    """LSTD with kernel features that are computed whenever they are read."""
    observations = states(KERNEL_STEPS)
    reward = np.sin(observations).sum(axis=1) + np.random.default_rng(2).standard_normal(KERNEL_STEPS)
    last = np.arange(KERNEL_STEPS) % EPISODE == EPISODE - 1
    log = vf.Transitions.from_arrays(observations, reward, terminated=last)
    kernel = vf.features.Kernel(LANDMARKS).fit(observations[:: KERNEL_STEPS // 20_000])
    problem = vf.Problem.from_kernel(log, kernel, device=DEVICE, discount=0.95)
    seconds, found = solved(problem, "lstd", repeats=1)
    name = f"lstd, kernel features on the fly ({KERNEL_STEPS:,} steps, {problem.d - 1:,} landmarks), float64"
    yield Figure(name, text_of(seconds, found), "at most 8 s", seconds > 8)


def evaluation(steps: int = 200_000, landmarks: int = 500) -> Iterator[Figure]:
    """`evaluate` with its standard error and checks, on the device and in memory."""
    observations = states(steps)
    reward = np.sin(observations).sum(axis=1) + np.random.default_rng(2).standard_normal(steps)
    last = np.arange(steps) % EPISODE == EPISODE - 1
    log = vf.Transitions.from_arrays(observations, reward, terminated=last)
    settings = {"features": f"kernel:landmarks={landmarks}", "solver": "lstd", "discount": 0.95}
    found, times = [], []
    for device in (None, DEVICE):
        times.append(seconds_of(lambda device=device: found.append(vf.evaluate(log, device=device, **settings)), 1))
    memory, on_device = found[0].policy_value, found[-1].policy_value
    off = abs(on_device.standard_error / memory.standard_error - 1)
    value = f"{times[1]:.1f} s, in memory {times[0]:.1f} s; standard errors differ by {off:.0e}"
    yield Figure(f"evaluate ({steps:,}, {landmarks} landmarks), lstd, CR3", value, "at most 1e-8", off > 1e-8)


def figures() -> Iterator[Figure]:
    for section in (in_float64, in_float32, wide, kernel_features, streamed, evaluation, same_as_cpu):
        yield from section()
        torch.cuda.empty_cache()


def same_as_cpu(steps: int = 20_000, d: int = 300) -> Iterator[Figure]:
    """LSTD of the same rows on the device and on the CPU."""
    problem = problem_of(steps, d)
    _, now, episode = trajectory(steps)
    reward = problem.steps.reward.cpu().numpy()[now]
    rows = problem.phi.matrix.cpu().numpy()
    cpu = vf.solve(vf.Problem.from_rows(rows, now, now + 1, reward, 0.95, episode=episode), "lstd").theta
    off = np.linalg.norm(vf.solve(problem, "lstd").theta - cpu) / np.linalg.norm(cpu)
    yield Figure(f"lstd ({steps:,}, {d}): relative difference from the CPU", f"{off:.0e}", "at most 1e-8", off > 1e-8)


def main() -> None:
    lines = [
        "# Speed on a GPU",
        "",
        f"Written by `python -m benchmarks.gpu` on one {torch.cuda.get_device_name()} with torch {torch.__version__}. "
        "Medians of three runs after one that is not counted; the rows are on the device before the clock starts, "
        "unless they are computed or streamed there. "
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
