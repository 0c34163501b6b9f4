"""Rows sketched into sums: where each goes, against plain loops; and that C of the sums is C in the mean."""

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given
from hypothesis import strategies as st

from valuefit.linalg.sketch import CountSketch, count_sketch, sketch_rows, sketch_steps
from valuefit.rows.storage import Rows


def places(found: CountSketch) -> list[tuple[int, int, float]]:
    """(row, sum, sign) of every row, dealt out by hand."""
    order = [
        i for piece in found.pieces for i in range(piece * found.piece, (piece + 1) * found.piece)
    ]  # fmt: skip
    order += range(len(order), found.total)
    most, out, begins = -(-found.total // found.size), [], list(found.begins)
    for first in range(0, found.size, found.together):
        sums = list(range(first, min(first + found.together, found.size)))
        begin, end = (found.total * edge // found.size for edge in (sums[0], sums[-1] + 1))
        group, starts = list(range(begin, end)), begins[:most]
        del begins[:most]
        while group:
            lap, group, start = group[: len(sums)], group[len(sums) :], int(starts.pop(0)) % len(sums)
            turned = sums[start:] + sums[:start]
            for j, place in zip(lap, turned, strict=False):
                out.append((order[j], place, 1.0 if int(found.signs[j // 64]) >> j % 64 & 1 else -1.0))
    return out


def sketches() -> st.SearchStrategy[CountSketch]:
    """All kinds of shapes: pieces longer and shorter than rows are many, groups that do not divide the sums."""
    return st.builds(
        lambda size, more, seed, row, total: count_sketch(
            size + more, size, np.random.default_rng(seed), row_bytes=row, sum_bytes=total
        ),
        st.integers(1, 40), st.integers(0, 400), st.integers(0, 99),
        st.sampled_from([8.0, 6000.0, 30_000.0, 1e6]), st.sampled_from([16.0, 20_000.0, 60_000.0, 1e6]),
    )  # fmt: skip


@given(sketches())
def test_everything_goes_to_one_sum_and_no_sum_gets_more_than_its_share(found):
    dealt = places(found)
    assert sorted(i for i, *_ in dealt) == list(range(found.total))
    counts = np.bincount([place for _, place, _ in dealt], minlength=found.size)
    assert len(counts) == found.size
    assert counts.max() <= found.most == -(-found.total // found.size)
    assert counts.min() >= found.total // found.size - 1  # hardly less than the others


@given(sketches(), st.booleans(), st.integers(0, 3))
def test_sums_of_rows_are_those_of_plain_loops(found, csr, split):
    rng = np.random.default_rng(0)
    table, index = rng.standard_normal((9, 3)), rng.integers(0, 9, found.total)
    weight = rng.random(found.total)
    rows = Rows(sparse.csr_array(table) if csr else table).kernel
    expected = np.zeros((found.size, 3))
    for i, place, sign in places(found):
        expected[place] += sign * weight[i] * table[index[i]]
    cut = min(split, found.groups)  # in two parts, as where all sums at once would not fit
    parts = [np.zeros((found.size, 3)), np.zeros((found.size, 3))]
    sketch_rows(rows, index, weight, found, 0, cut, parts[0])
    sketch_rows(rows, index, weight, found, cut, found.groups, parts[1])
    whole = parts[0].copy()
    from_here = min(cut * found.together, found.size)
    whole[from_here:] += parts[1][: found.size - from_here]
    np.testing.assert_allclose(whole, expected, atol=1e-12)


@given(sketches(), st.booleans(), st.booleans())
def test_sums_of_steps_are_those_of_plain_loops(found, csr, shared):
    rng = np.random.default_rng(0)
    phi, n = rng.standard_normal((9, 3)), found.total
    psi = phi if shared else rng.standard_normal((9, 4))
    now, after = rng.integers(0, 9, n), rng.integers(0, 9, n)
    discount, ratio = rng.choice([0.0, 0.9], n), rng.random(n)
    store = [Rows(sparse.csr_array(rows) if csr else rows).kernel for rows in (phi, psi)]
    X, V = np.zeros((found.size, psi.shape[1])), np.zeros((found.size, 3))
    sketch_steps(*store, shared, now, after, discount, ratio, 0.5, found, 0, found.groups, X, V)
    expected, of_v = np.zeros_like(X), np.zeros_like(V)
    for t, place, sign in places(found):
        expected[place] += 0.5 * sign * psi[now[t]]
        of_v[place] += 0.5 * sign * ratio[t] * (phi[now[t]] - discount[t] * phi[after[t]])
    np.testing.assert_allclose(X, expected, atol=1e-12)
    np.testing.assert_allclose(V, of_v, atol=1e-12)


KINDS = ["even", "periodic", "heavy rows together", "episodes of equal length"]


@pytest.mark.parametrize("kind", KINDS)
def test_sketched_rows_estimate_C_as_well_as_after_a_full_shuffle(monkeypatch, kind):
    """The spread of C of the sums around C, over many draws, is that of a full shuffle, and its mean is C."""
    monkeypatch.setattr("valuefit.linalg.sketch.PIECE_BYTES", 16 * 24)  # pieces of 16 rows at most
    monkeypatch.setattr("valuefit.linalg.sketch.CACHE_BYTES", 40 * 24)  # 40 sums at a time
    rng = np.random.default_rng(0)
    n, size = 4000, 200
    rows = rng.standard_normal((n, 3))
    if kind == "periodic":
        rows = rows[np.arange(n) % 16] * [1.0, 2.0, 0.1]
    elif kind == "heavy rows together":
        rows[1000:1100] *= 30.0
    elif kind == "episodes of equal length":
        rows *= (1.0 + 9.0 * (np.arange(n) % 40 < 2))[:, None]
    C = rows.T @ rows
    L = np.linalg.cholesky(C)
    kernel, here, ones = Rows(rows).kernel, np.arange(n), np.ones(n)

    def off(X):
        white = np.linalg.solve(L, X.T)
        return white @ white.T - np.eye(3)

    ours, shuffled = [], []
    for seed in range(400):
        draw = np.random.default_rng(seed)
        found = count_sketch(n, size, draw, row_bytes=24, sum_bytes=24)
        assert (found.piece, found.together) == (5, 40)
        X = np.zeros((size, 3))
        sketch_rows(kernel, here, ones, found, 0, found.groups, X)
        ours.append(off(X))
        signed = draw.choice([-1.0, 1.0], (n, 1)) * rows[draw.permutation(n)]
        shuffled.append(off(signed.reshape(size, -1, 3).sum(axis=1)))
    spread, wanted = (np.sqrt(np.mean([np.sum(e**2) for e in all_off])) for all_off in (ours, shuffled))
    assert np.abs(np.mean(ours, axis=0)).max() <= 4 * wanted / np.sqrt(400)
    assert spread <= 1.1 * wanted


@pytest.mark.parametrize("width", [20, 200, 1000, 4000])
def test_neighbours_hardly_ever_share_a_sum(width):
    """They are alike in a log, and so would count twice or not at all."""
    found = count_sketch(5000, 2400, np.random.default_rng(0), row_bytes=8 * width, sum_bytes=16 * width)
    place_of = np.empty(found.total, int)
    for i, place, _ in places(found):
        place_of[i] = place
    assert np.mean(place_of[1:] == place_of[:-1]) <= 0.005
