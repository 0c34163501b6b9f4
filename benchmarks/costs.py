"""What the cost model of `auto` needs to know of a machine: seconds an operation, measured on one thread.

`python -m benchmarks.costs` prints a table and the same as a Python dictionary. Costs that have a fixed part are lines
fitted through several sizes: seconds = each * amount + fixed.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg
import scipy.optimize as optimize
from threadpoolctl import threadpool_limits

import valuefit as vf
from benchmarks.engine import dense_problem, median_seconds, sparse_problem, update_seconds
from valuefit.exact import Exact

Costs = dict[str, float]
WHAT = {
    "dense_pass_byte": "B(theta, w), dense rows: a byte stored",
    "dense_pass_step": "B(theta, w), dense rows: a step besides",
    "half_pass_byte": "A theta, dense rows: a byte stored",
    "sparse_pass_nonzero": "B(theta, w), CSR rows: a nonzero",
    "sparse_pass_step": "B(theta, w), CSR rows: a step besides",
    "gram_flop": "A from distinct dense rows: an operation of 2 n d^2",
    "sparse_gram_square": "A from CSR rows: a step times nonzeros a row squared",
    "dgemm_flop": "X'Y, tall: an operation of 2 n d^2",
    "dsyrk_flop": "X'X, tall, one triangle: an operation of n d^2",
    "lu_flop": "LU: an operation of 2/3 d^3",
    "cholesky_flop": "Cholesky: an operation of d^3 / 3",
    "eigen_flop": "Exact (eigenvalues of C, singular values of M): d^3",
    "svrg_update": "SVRG: an update",
    "svrg_update_byte": "SVRG: a byte of its two rows besides",
    "saga_update": "SAGA: an update",
    "saga_update_byte": "SAGA: a byte of its two rows besides",
    "svrg_sparse_update": "SVRG on CSR: an update",
    "svrg_sparse_nonzero": "SVRG on CSR: a nonzero of its two rows besides",
    "saga_sparse_update": "SAGA on CSR: an update",
    "saga_sparse_nonzero": "SAGA on CSR: a nonzero of its two rows besides",
    "solve_fixed": "solve() of a tiny problem by lstd",
}


def line(amounts: list[float], seconds: list[float]) -> tuple[float, float]:
    """(each, fixed), neither below zero, of the line with the smallest relative errors."""
    y = np.maximum(seconds, 1e-12)  # a difference of two small times may come out below zero
    each, fixed = optimize.nnls(np.column_stack([amounts / y, 1 / y]), np.ones(len(y)))[0]
    return float(each), float(fixed)


def batch_costs(n: int, widths: list[int]) -> Costs:
    """Full-batch products."""
    whole: list[float] = []
    half: list[float] = []
    for d in widths:
        problem, x = dense_problem(n, d), np.ones(d)
        whole.append(median_seconds(lambda problem=problem, x=x: problem.B(x, x)) / n)
        half.append(median_seconds(lambda problem=problem, x=x: problem.A_dot(x)) / n)
    row_bytes = [8.0 * d for d in widths]
    counts = [4, 8, 16, 32]
    scattered: list[float] = []
    for nonzeros in counts:
        problem, x = sparse_problem(n, 10_000, nonzeros), np.ones(10_000)
        scattered.append(median_seconds(lambda problem=problem, x=x: problem.B(x, x)) / n)
    each, fixed = line(row_bytes, whole)
    sparse_each, sparse_fixed = line([float(count) for count in counts], scattered)
    return {
        "dense_pass_byte": each, "dense_pass_step": fixed, "half_pass_byte": line(row_bytes, half)[0],
        "sparse_pass_nonzero": sparse_each, "sparse_pass_step": sparse_fixed,
    }  # fmt: skip


def matrix_costs(n: int, d: int) -> Costs:
    """Products and factorisations, by BLAS and by the moments of a problem."""
    rng = np.random.default_rng(0)
    X, Y = rng.random((2, n, d))
    square = X[:d].T @ X[:d] + d * np.eye(d)
    problem = dense_problem(n, d)
    scattered = sparse_problem(n, 2000, 8)
    small = dense_problem(2000, 200)

    def forget(problem: vf.Problem, *names: str) -> None:
        for name in names:
            problem.__dict__.pop(name, None)

    def exact() -> None:
        forget(small, "C_spectrum", "C_root")
        Exact(small)

    return {
        "gram_flop": median_seconds(lambda: (forget(problem, "A"), problem.A), 3) / (2 * n * d**2),
        "sparse_gram_square": median_seconds(lambda: (forget(scattered, "A"), scattered.A), 3) / (n * 8**2),
        "dgemm_flop": median_seconds(lambda: X.T @ Y, 3) / (2 * n * d**2),
        "dsyrk_flop": median_seconds(lambda: linalg.blas.dsyrk(1.0, X.T), 3) / (n * d**2),
        "lu_flop": median_seconds(lambda: linalg.lapack.dgetrf(square), 3) / (2 / 3 * d**3),
        "cholesky_flop": median_seconds(lambda: linalg.lapack.dpotrf(square, lower=True), 3) / (d**3 / 3),
        "eigen_flop": median_seconds(exact, 3) / 200**3,
    }


def update_costs(n: int, widths: list[int]) -> Costs:
    """Single-row updates of SVRG and SAGA."""
    found: Costs = {}
    counts = [4, 8, 16, 32]
    for solver in (vf.solvers.SVRG(), vf.solvers.SAGA()):
        dense = [update_seconds(dense_problem(n, d), solver) for d in widths]
        each, fixed = line([16.0 * d for d in widths], dense)
        scattered = [update_seconds(sparse_problem(n, 10_000, nonzeros), solver) for nonzeros in counts]
        sparse_each, sparse_fixed = line([2.0 * nonzeros for nonzeros in counts], scattered)
        found |= {
            f"{solver.name}_update": fixed, f"{solver.name}_update_byte": each,
            f"{solver.name}_sparse_update": sparse_fixed, f"{solver.name}_sparse_nonzero": sparse_each,
        }  # fmt: skip
    return found


def measure(*, quick: bool = False) -> Costs:
    """Seconds an operation; `quick` takes small sizes, for checking the code."""
    n, widths, square = (2000, [20, 40], 60) if quick else (100_000, [50, 100, 200, 400], 1000)
    tiny = dense_problem(50, 5)
    with threadpool_limits(1):
        found = batch_costs(n, widths) | matrix_costs(n // 5 if not quick else n, square) | update_costs(n, widths)
        found["solve_fixed"] = median_seconds(lambda: vf.solve(tiny, "lstd"))
    return {name: found[name] for name in WHAT}


def main() -> None:
    costs = measure()
    print("| seconds | of |\n|---|---|")
    print("\n".join(f"| {costs[name]:.2e} | {what} |" for name, what in WHAT.items()))
    print("\nCOSTS = {")
    print("\n".join(f'    "{name}": {value:.2e},' for name, value in costs.items()))
    print("}")


if __name__ == "__main__":
    main()
