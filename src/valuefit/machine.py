"""Coefficients of the cost model. They are constants, not measured at run time, so that results are reproducible."""

from __future__ import annotations

# BLAS operations in the time in which one pass reads a number twice from memory, for dense and for sparse rows
# (benchmarks/engine.py measures the first). A number of a sparse row takes longer, because the weights that it is
# multiplied by are scattered over memory.
GEMM_FLOPS, SPARSE_FLOPS = 32, 200

# Seconds on one core, measured by benchmarks/costs.py; only their ratios affect the choice of a solver.
COSTS = {
    "fixed": 2.8e-4,  # solve() of a tiny problem
    "pass_byte": 5.5e-11,  # A theta, for each byte of dense rows
    "pass_step": 2.2e-8,  # A theta with dense rows, for each step, in addition
    "pass_nonzero": 4.6e-9,  # A theta, for each nonzero of CSR rows
    "sparse_step": 1.9e-8,  # A theta with CSR rows, for each step, in addition
    "gram_flop": 2.1e-11,  # A from distinct dense rows, for each of 2 n d^2 operations
    "factor_flop": 2.9e-11,  # LU factorisation, for each of 2/3 d^3 operations
    "iteration": 1.6e-4,  # an iteration of krylov, at any size
    "sparse_square": 4.0e-8,  # A from CSR rows, for each step times squared nonzeros of a row
    "svrg_byte": 1.1e-10,  # an update of SVRG or SAGA, for each byte of its two rows
    "svrg_update": 8.8e-8,  # an update of SVRG or SAGA, in addition
}


def seconds(name: str, threads: int) -> float:
    """The cost on this many threads."""
    return COSTS[name]
