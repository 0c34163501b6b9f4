"""How fast machines are: coefficients of the cost model, fixed numbers so that the same seed gives the same bits."""

from __future__ import annotations

# In the time that one pass takes to read a number twice from memory, BLAS does this many operations
# (make bench measures it). A number of sparse rows takes longer, for what it is multiplied by is all over memory.
GEMM_FLOPS, SPARSE_FLOPS = 32, 200

# Seconds on one core, as `python -m benchmarks.costs` prints them; only their ratios matter.
COSTS = {
    "fixed": 2.8e-4,  # solve() of a tiny problem
    "pass_byte": 5.5e-11,  # A theta: a byte of dense rows
    "pass_step": 2.2e-8,  # A theta: a step besides
    "pass_nonzero": 4.6e-9,  # A theta: a nonzero of CSR rows
    "sparse_step": 1.9e-8,  # and a step besides
    "gram_flop": 2.1e-11,  # A from distinct dense rows: an operation of 2 n d^2
    "factor_flop": 2.9e-11,  # LU: an operation of 2/3 d^3
    "iteration": 1.6e-4,  # of krylov, whatever the size
    "sparse_square": 4.0e-8,  # A from CSR rows: a step times nonzeros a row squared
    "svrg_byte": 1.1e-10,  # SVRG and SAGA: a byte of the two rows of an update
    "svrg_update": 8.8e-8,  # an update besides
}
