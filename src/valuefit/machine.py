"""Coefficients of the cost model. They are constants, not measured at run time, so that results are reproducible."""

from __future__ import annotations

from valuefit.threads import thread_count

# BLAS operations in the time in which one pass reads a number twice from memory, for dense and for sparse rows
# (benchmarks/engine.py measures the first). A number of a sparse row takes longer, because the weights that it is
# multiplied by are scattered over memory.
GEMM_FLOPS, SPARSE_FLOPS = 32, 200
GPU_FLOPS = 96  # the same for dense rows on a GPU (benchmarks/gpu.py), where a pass reads a number once

# Seconds on one core, between those that benchmarks/costs.py measured on a 2-core and on a 16-core machine: within a
# factor of 2 of both. Only their ratios affect the choice of a solver.
COSTS = {
    "fixed": 4.0e-4,  # solve() of a tiny problem
    "solve_step": 8.0e-8,  # solve(), for each step, in addition to the passes over the rows
    "pass_byte": 1.0e-10,  # A theta, for each byte of dense rows
    "pass_step": 1.5e-8,  # A theta with dense rows, for each step, in addition
    "pass_nonzero": 4.6e-9,  # A theta, for each nonzero of CSR rows
    "sparse_step": 1.5e-8,  # A theta with CSR rows, for each step, in addition
    "gram_flop": 2.1e-11,  # A from distinct dense rows, for each of 2 n d^2 operations
    "factor_flop": 2.9e-11,  # LU factorisation, for each of 2/3 d^3 operations
    "iteration": 2.0e-4,  # an iteration of krylov, at any size
    "sparse_square": 8.5e-8,  # A from CSR rows, for each step times squared nonzeros of a row
    "svrg_byte": 1.5e-10,  # an update of SVRG or SAGA, for each byte of its two rows
    "svrg_update": 8.8e-8,  # an update of SVRG or SAGA, in addition
}
# (exponent, limit) of the speed-up threads ** exponent, as measured on 1 to 16 threads; the other costs do not change.
SPEED_UP = {
    "pass_byte": (1.0, 5.0),
    "pass_nonzero": (1.0, 4.0),
    "gram_flop": (1.0, 5.0),
    "factor_flop": (0.5, 2.5),
}
# Seconds on a GPU, from benchmarks/gpu.py on one H200; factors of `lstd` and vectors of solvers stay on the host.
GPU_COSTS = {
    "fixed": 5.0e-3,
    "solve_step": 0.0,
    "pass_byte": 2.5e-13,
    "pass_step": 1.0e-11,
    "pass_nonzero": 4.0e-11,  # this and the other two of tile-coded rows are estimates
    "sparse_step": 1.0e-11,
    "sparse_square": 5.0e-10,
    "gram_flop": 2.2e-14,
    "factor_flop": 1.0e-12,
    "iteration": 5.0e-4,
}

# Seconds of one thread on a cluster, from benchmarks/cluster.py; products and factorisations take the COSTS above.
CLUSTER_COSTS = {
    "task": 8.3e-4,  # of a task in Dask's scheduler
    "sum_byte": 1.4e-10,  # to send and add a byte of a sum
    "read_step": 3.7e-8,  # to read a step
    "problem_step": 3.2e-7,  # of a step in making a problem of a log
    "feature": 3.0e-9,  # of a feature number (a cosine) with its products with vectors
}
WORKER_BYTES = 1.8e8  # of a worker without data


def seconds(name: str, threads: int | None = None, *, gpu: bool = False) -> float:
    """The cost of this name on so many threads, by default those that valuefit may use, or on a GPU."""
    if gpu:
        return GPU_COSTS[name]
    exponent, limit = SPEED_UP.get(name, (0.0, 1.0))
    threads = thread_count() if threads is None else threads
    return COSTS[name] / min(threads**exponent, limit)
