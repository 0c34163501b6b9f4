"""Logs on torch tensors: the same steps as a problem in memory, with rows in the order of the steps or in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import naive
import valuefit as vf
from valuefit.gpu.device_rows import TensorRows
from valuefit.gpu.device_steps import DeviceSteps
from valuefit.problem.arguments import StepArrays

# every property of a problem that a device supports; "shuffled": rows in an order other than that of the steps
KINDS: dict[str, dict[str, Any]] = {
    "on-policy": {},
    "shuffled": {"shuffled": True},
    "ratio": {"ratio": True},
    "trace": {"trace": 0.7, "ratio": True},
    "shuffled trace": {"trace": 0.7, "ratio": True, "shuffled": True},
    "ridge": {"ridge": 0.1},
    "identity": {"identity": True},
    "dual": {"dual": 3},
    "dual ridge trace": {"dual": 3, "ridge": 0.05, "trace": 0.5},
    "float32": {"float32": True},
}


def trajectory_log(
    n: int = 600, d: int = 8, *, length: int = 50, shuffled: bool = False, ratio: bool = False, trace: float = 0.0,
    ridge: float = 0.0, identity: bool = False, dual: int = 0, float32: bool = False, seed: int = 0,
) -> naive.Log:  # fmt: skip
    """Episodes of `length` steps over an AR(1) process, every other one terminated; its last observation has a row."""
    rng = np.random.default_rng(seed)
    now = np.arange(n) + np.arange(n) // length
    last = np.arange(n) % length == length - 1
    terminated = last & (np.arange(n) // length % 2 == 0)
    m = int(now[-1]) + 2
    rows = rng.standard_normal((m, d + dual))
    for i in range(1, m):
        rows[i] = 0.8 * rows[i - 1] + 0.6 * rows[i]
    rows[:, 0] = 1.0
    rows = rows.astype(np.float32).astype(np.float64) if float32 else rows
    order = rng.permutation(m) if shuffled else np.arange(m)
    stored = np.empty_like(rows)
    stored[order] = rows
    reward = rows[now, 1] + rng.standard_normal(n)
    return naive.Log(
        stored[:, :d], stored, order[now], np.where(terminated, -1, order[now + 1]), reward,
        np.where(terminated, 0.0, 0.9), rng.lognormal(0, 0.3, n) if ratio else np.ones(n), np.arange(n) // length,
        trace, ridge, identity,
    )  # fmt: skip


def both(kind: str, **settings: Any) -> tuple[vf.Problem, Any]:
    """The problem of this kind in memory and on torch tensors."""
    options = {**KINDS[kind], **settings}
    log = trajectory_log(**options)
    dtype = np.float32 if options.get("float32") else np.float64
    found = []
    for convert in (np.asarray, torch.from_numpy):
        found.append(
            vf.Problem.from_rows(
                convert(np.ascontiguousarray(log.Phi, dtype)), log.now, log.next, log.reward, log.discount, log.ratio,
                log.episode, trace=log.trace, ridge=log.ridge, metric="identity" if log.identity else "C",
                dual_rows=convert(np.ascontiguousarray(log.Psi, dtype)) if options.get("dual") else None,
            )
        )  # fmt: skip
    return found[0], found[1]


def device_log(kind: str, **settings: Any) -> tuple[naive.Log, TensorRows, TensorRows, DeviceSteps]:
    """The naive log of this kind, and its rows (phi, psi) and steps on the CPU as torch sees it."""
    log = trajectory_log(**{**KINDS[kind], **settings})
    begins = np.diff(log.episode, prepend=-1) != 0
    columns = log.now, np.where(log.next < 0, log.now, log.next), log.reward, log.discount, log.ratio, begins
    steps = DeviceSteps(StepArrays(*columns), torch.device("cpu"), trace=log.trace, rows=len(log.Phi))
    phi = TensorRows(torch.from_numpy(np.ascontiguousarray(log.Phi)))
    return log, phi, TensorRows(torch.from_numpy(log.Psi)) if log.Psi.shape != log.Phi.shape else phi, steps
