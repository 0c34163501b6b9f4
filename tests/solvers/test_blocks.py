"""`block=`, single-row steps in blocks of a shuffled copy: the order of the draws, and updates equal to the twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.problems import make, problem_of
from helpers.twins import CASES, METHODS, STEP_THETA, STEP_W, Case, S, apart, label, schedules, start_of
from valuefit.problem.exact import Exact
from valuefit.solvers.blocks import Blocks, shuffled

BOTH = {"svrg": S.SVRG, "saga": S.SAGA}
# The fused kernels sum products of float32 rows in single precision.
SINGLE_PRECISION = 1e-5
LARGE_STEPS = {"step_theta": STEP_THETA, "step_w": STEP_W}


def blocks_of(state: object) -> Blocks:
    return state.memory[-1]


def tolerance(blocks: Blocks) -> float:
    single = blocks.fused and blocks.rows.phi.dtype == np.float32
    return SINGLE_PRECISION if single else 1e-9


def positions_of(rng: np.random.Generator, n: int, size: int, count: int) -> list[int]:
    """The positions drawn in an epoch, in plain loops: runs of `size` from random starts, modulo n."""
    positions: list[int] = []
    for start in rng.integers(0, n, -(-count // size)):
        for i in range(size):
            positions.append((int(start) + i) % n)
    return positions[:count]


def run_epochs(name: str, problem: vf.Problem, start: tuple, lengths: list[int], block: int, seed: int = 5) -> tuple:
    """The iterates at the end of each epoch, the steps drawn in each epoch, and the shuffled copy."""
    solver = BOTH[name](**LARGE_STEPS, inner=lengths[0], block=block)
    state, _ = solver.init(problem, *start)
    blocks, rng, same = blocks_of(state), np.random.default_rng(seed), np.random.default_rng(seed)
    found, draws = [], []
    for length in lengths:
        state, _ = solver.epoch(problem, state, rng)
        found.append((state.theta, state.w))
        draws.append(blocks.order[positions_of(same, problem.n, min(block, problem.n), length)])
    return found, draws, blocks


# ---- the order ---------------------------------------------------------------------------------------------


class EveryStart:
    """A random generator that draws every start once."""

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        assert (low, high - low) == (0, size)
        return np.arange(low, high)


@pytest.mark.parametrize(("n", "size"), [(16, 16), (17, 5), (33, 32), (33, 16), (1, 1), (20, 3)])
def test_every_step_has_the_same_probability_at_every_draw(n: int, size: int) -> None:
    """For each position in a block, exactly one of the n equally likely starts draws a given step."""
    blocks = shuffled(problem_of(naive.random_log(np.random.default_rng(2), n)), size)
    runs = blocks.order[blocks.draw(EveryStart(), n * size)].reshape(n, size)
    for place in range(size):
        assert sorted(runs[:, place]) == list(range(n))


def test_random_draws_visit_all_steps_equally_often() -> None:
    n, size = 37, 16
    blocks = shuffled(problem_of(naive.random_log(np.random.default_rng(2), n)), size)
    places = blocks.draw(np.random.default_rng(0), 20_000 * size + 3)
    assert len(places) == 20_000 * size + 3
    counts = np.bincount(places, minlength=n)
    expected = len(places) / n
    # a position is in a block at most once, so its count is binomial
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()


@pytest.mark.parametrize("case", [case for case in CASES if case.ratio], ids=label)
def test_the_copy_holds_every_step_once_in_another_order(case: Case) -> None:
    problem = problem_of(case.log(), case.storage)
    blocks, n = shuffled(problem, 4), problem.n
    assert sorted(blocks.order) == list(range(n))
    assert (blocks.order != np.arange(n)).any()
    rows = problem.phi.kernel, problem.psi.kernel, problem.u.kernel
    for copied, of_step, given in zip(
        (blocks.steps(np.arange(n))), problem.steps(blocks.order), ("phi", "phi", None, "u", None), strict=True
    ):
        if given is None:
            np.testing.assert_array_equal(copied, of_step)
            continue
        copy, original = {"phi": (blocks.rows.phi, rows[0]), "u": (blocks.rows.u, rows[2])}[given]
        width = problem.d if given == "phi" else problem.k
        np.testing.assert_array_equal(dense(copy, width)[copied], dense(original, width)[of_step])
    np.testing.assert_array_equal(
        dense(blocks.rows.psi, problem.k)[blocks.place.now], dense(rows[1], problem.k)[problem.now[blocks.order]]
    )


def dense(rows: object, width: int) -> np.ndarray:
    """Kernel rows as a dense matrix."""
    if isinstance(rows, np.ndarray):
        assert not rows[:, width:].any()
        return rows[:, :width]
    data, indices, indptr = rows
    out = np.zeros((len(indptr) - 1, width))
    for i in range(len(out)):
        out[i, indices[indptr[i] : indptr[i + 1]]] = data[indptr[i] : indptr[i + 1]]
    return out


# ---- the updates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=label)
@pytest.mark.parametrize("name", BOTH)
def test_every_update_equals_that_of_the_twin(name: str, case: Case) -> None:
    log = case.log()
    problem, start = problem_of(log, case.storage), start_of(log)
    for block, lengths in [(3, lengths) for lengths in schedules(problem.n)] + [(16, [70, 70]), (1000, [50] * 2)]:
        found, draws, blocks = run_epochs(name, problem, start, lengths, block)
        expected = METHODS[name].twin(log, start, draws)
        for epoch in range(len(lengths)):
            assert apart(found[epoch], expected[epoch]) <= tolerance(blocks), (block, lengths, epoch)
        assert apart(expected[-1][:1], start[:1]) > 1e-3, "the twin did not move, so the comparison is empty"
    assert blocks.fused == (not case.trace and not case.more and case.storage != "csr")


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("name", BOTH)
def test_a_log_of_a_single_step_equals_the_twin(name: str, terminated: bool) -> None:
    Phi = np.array([[1.0, 0.5, -1.0], [1.0, -2.0, 0.3]])
    one = [np.array(part) for part in ([0], [-1 if terminated else 1], [2.0], [0.0 if terminated else 0.9], [1.5], [7])]
    log = naive.Log(Phi, Phi, *one)
    found, draws, _ = run_epochs(name, problem_of(log), start_of(log), [40, 40], 4)
    for epoch, expected in enumerate(METHODS[name].twin(log, start_of(log), draws)):
        assert apart(found[epoch], expected) <= 1e-10


@pytest.mark.parametrize("storage", ["dense", "float32"])
@pytest.mark.parametrize(("ridge", "identity"), [(0.5 / STEP_THETA, False), (1.5 / STEP_THETA, True)])
@pytest.mark.parametrize("name", BOTH)
def test_a_large_ridge_equals_the_twin(name: str, ridge: float, identity: bool, storage: str) -> None:
    log = Case(storage, ratio=True, ridge=ridge, identity=identity).log()
    problem, start = problem_of(log, storage), start_of(log)
    found, draws, blocks = run_epochs(name, problem, start, [400, 400], 16)
    for epoch, expected in enumerate(METHODS[name].twin(log, start, draws)):
        assert apart(found[epoch], expected) <= tolerance(blocks)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("name", BOTH)
def test_numbers_out_of_range_for_single_precision_are_summed_in_double(name: str, scale: float) -> None:
    log = Case("float32", ratio=True).log()
    rows = (scale * log.Phi).astype(np.float32)
    log = log._replace(Phi=rows.astype(float), Psi=rows.astype(float))
    problem = problem_of(log, "float32")
    solver = BOTH[name](step_theta=STEP_THETA / scale**2, step_w=STEP_W / scale**2, inner=50, block=4)
    state, _ = solver.init(problem, np.zeros(3), np.zeros(3))
    blocks = blocks_of(state)
    assert not blocks.fused
    draws = [blocks.order[positions_of(np.random.default_rng(5), problem.n, 4, 50)]]
    state, _ = solver.epoch(problem, state, np.random.default_rng(5))
    twin = {"svrg": naive.svrg, "saga": naive.saga}[name]
    expected = twin(log, np.zeros(3), np.zeros(3), draws, *state.steps)[-1]
    found = scale * state.theta, scale * state.w
    assert apart(found, (scale * expected[0], scale * expected[1])) <= 1e-9
    assert np.abs(found[0]).max() > 1e-3


# ---- whole runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random MDP", "float32"])
@pytest.mark.parametrize("name", BOTH)
def test_it_converges_and_the_same_seed_gives_the_same_bits(name: str, kind: str) -> None:
    """Single precision rounds changes of the iterates, not the iterates, so gaps below its precision are reached."""
    problem = make(kind)
    first, again, other = (
        vf.solve(problem, BOTH[name](block=8), tol=1e-12, max_passes=600, seed=seed) for seed in (1, 1, 2)
    )
    assert first.status == "converged"
    assert Exact(problem).gap(first.theta) <= 1e-12
    assert first.theta.tobytes() == again.theta.tobytes()
    assert first.theta.tobytes() != other.theta.tobytes()


@pytest.mark.parametrize("name", BOTH)
def test_the_copy_is_counted_and_shared_by_all_epochs(name: str) -> None:
    problem, n = make("ridge"), 600
    theta, w = np.zeros(problem.d), np.zeros(problem.k)
    plain = BOTH[name](**LARGE_STEPS)
    state, info = replace(plain, block=8).init(problem, theta, w)
    assert info.passes == plain.init(problem, theta, w)[1].passes + 1
    after, info = replace(plain, block=8).epoch(problem, state, np.random.default_rng(0))
    assert info.passes == (2.0 if name == "svrg" else 1.0)
    assert problem.n == n
    assert blocks_of(after) is blocks_of(state)


@pytest.mark.parametrize("name", BOTH)
def test_invalid_blocks_and_copies_that_do_not_fit_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in (0, -1, 2.5):
        with pytest.raises(ValueError, match=rf"^block is {block}; it must be at least 1"):
            BOTH[name](block=block)
    with pytest.raises(ValueError, match=rf"^Catalyst restarts {name} many times.* Leave block at 1\.$"):
        S.Catalyst(BOTH[name](block=8))
    for kind in ("trace 0.8", "dual features", "float32"):
        problem = make(kind)
        solver = BOTH[name](**LARGE_STEPS, block=8)
        problem.u  # noqa: B018, its own memory is checked elsewhere
        stored = 2 * 600 * problem.d * problem.phi.dtype.itemsize
        monkeypatch.setattr("valuefit.memory.memory_limit", lambda stored=stored: stored - 1)
        with pytest.raises(MemoryError, match=r"^A shuffled copy of the rows of 600 steps .* Leave block at 1"):
            solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))


@pytest.mark.parametrize("name", BOTH)
def test_more_updates_than_can_be_drawn_are_refused(name):
    with pytest.raises(ValueError, match=r"inner is \d+; it must be at most 2,147,483,647"):
        BOTH[name](inner=2**60)
