"""Numbers of today, to compare with tomorrow's to the bit: for changes that must not change any.

`python tests/freeze.py write FILE` solves some hundred problems, evaluates and writes theta, w, passes, status and
JSON; `python tests/freeze.py compare FILE` does it again and lists what differs. Bits depend on processor, versions and
threads, so FILE is never committed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from click.testing import CliRunner

import conftest  # noqa: F401  (one thread, before numpy loads)
import naive
import valuefit as vf
from helpers.problems import Oracle, problem_of
from valuefit.cli.main import main as command_line


def walk(rows: np.ndarray, reward: np.ndarray, **settings: object) -> vf.Problem:
    n = rows.shape[0] - 1
    return vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), reward, 0.9, **settings)


def cosines(n: int, d: int, **settings: object) -> vf.Problem:
    rng = np.random.default_rng(1)
    x = np.cumsum(rng.standard_normal((n + 1, 3)), axis=0)
    x = np.sin(0.1 * x)
    rows = np.column_stack([np.cos(x @ rng.standard_normal((3, d - 1)) * 3 + rng.uniform(0, 6, d - 1)), np.ones(n + 1)])
    if settings.pop("float32", False):
        rows = rows.astype(np.float32)
    return walk(rows, x[:-1, 0] + rng.standard_normal(n), **settings)


def tiled(n: int, **settings: object) -> vf.Problem:
    rng = np.random.default_rng(2)
    x = np.sin(0.05 * np.cumsum(rng.standard_normal((n + 1, 2)), axis=0))
    rows = vf.features.Tiles(4, 6, low=-1.0, high=1.0).fit_transform(x)
    return walk(rows, x[:-1, 0] + rng.standard_normal(n), **settings)


def problems() -> dict[str, vf.Problem]:
    rng = np.random.default_rng(3)
    return {
        "oracle 0": Oracle(0).problem(),
        "oracle 5 csr": Oracle(5).problem("csr"),
        "oracle 9": Oracle(9).problem(),
        "dual features": problem_of(naive.random_log(np.random.default_rng(5), n=80, d=4, k=6, ridge=0.02)),
        "identity": problem_of(naive.random_log(np.random.default_rng(6), n=80, d=4, identity=True)),
        "cosines": cosines(3000, 40),
        "cosines ridge": cosines(3000, 40, ridge=1e-3),
        "cosines trace ratio": cosines(2000, 30, trace=0.7, ratio=rng.lognormal(0, 0.4, 2000)),
        "cosines float32": cosines(3000, 40, float32=True),
        "tiles": tiled(3000),
        "tiles ridge": tiled(3000, ridge=1e-3),
        "tiles trace": tiled(1500, trace=0.6),
        "wide": cosines(1500, 300),
    }


def frozen() -> dict[str, str]:
    """A line for each case; arrays by their hash."""
    found = {}
    for label, problem in problems().items():
        for name in vf.solvers.names():
            if problem.traits & vf.solvers.registry()[name].refusals.keys():
                continue
            for tol in (1e-6, "statistical") if name in ("saga", "svrg") else (1e-6,):
                result = vf.solve(problem, name, tol=tol, max_passes=60)
                bits = hashlib.sha256(result.theta.tobytes() + result.w.tobytes()).hexdigest()[:16]
                found[f"{label}, {name}, {tol}"] = f"{result.status} {result.passes!r} {result.gap!r} {bits}"
    calls = [
        ["evaluate"], ["evaluate", "--features", "rbf", "--solver", "svrg"], ["evaluate", "--features", "tiles"],
        ["evaluate", "--trace", "0.5", "--ridge", "0.01"], ["solvers", "--markdown"],
    ]  # fmt: skip
    for call in calls:
        done = CliRunner().invoke(command_line, [*call, *(["--json"] if call[0] == "evaluate" else [])])
        found[" ".join(call)] = (
            hashlib.sha256(done.output.encode()).hexdigest()[:16] if not done.exception else done.output
        )
    return found


def main() -> None:
    action, path = sys.argv[1], Path(sys.argv[2])
    if action == "write":
        path.write_text(json.dumps(frozen(), indent=1))
        return
    before, now = json.loads(path.read_text()), frozen()
    different = [case for case in {**before, **now} if before.get(case) != now.get(case)]
    for case in different:
        print(f"{case}\n  before {before.get(case)}\n  now    {now.get(case)}")
    print(f"{len(now)} cases, {len(different)} differ")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
