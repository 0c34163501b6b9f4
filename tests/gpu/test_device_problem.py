"""A problem on torch tensors: products, solvers and certificates agree with those of the same rows in memory."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import naive
import valuefit as vf
from helpers.devices import KINDS, both, trajectory_log
from helpers.problems import cosines
from valuefit import memory as memory_module
from valuefit.gpu import device_rows
from valuefit.gpu.device_problem import DeviceProblem, Sampler
from valuefit.precondition.stochastic_preconditioner import BatchPlan, sketched_preconditioner
from valuefit.problem.exact import Exact
from valuefit.solvers.svrg import batch_steps


def close(found, expected, rtol=1e-11):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max(initial=0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_products_and_moments_equal_those_in_memory(kind):
    memory, device = both(kind)
    rng = np.random.default_rng(0)
    theta, w = rng.standard_normal(memory.d), rng.standard_normal(memory.k)
    assert device.traits == memory.traits | {"device"}
    for found, expected in zip(device.B(theta, w), memory.B(theta, w), strict=True):
        close(found, expected)
    close(device.residual(theta), memory.residual(theta))
    close(device.A_dot(theta), memory.A_dot(theta))
    close(device.At_dot(w), memory.At_dot(w))
    close(device.C_dot(w), memory.C_dot(w))
    for found, expected in zip(device.moments(), memory.moments(), strict=True):
        close(found, expected)
    close(device.second_moment, memory.second_moment)
    close(device.dual_squares, memory.dual_squares)
    close(device.mean_squares(theta, w), memory.mean_squares(theta, w))
    close(device.mean_squares(None, w), memory.mean_squares(None, w))
    close(device.reward_squares(), memory.reward_squares())
    close(device.A_in_float32(), memory.A, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_lstd_is_that_in_memory(kind):
    memory, device = both(kind)
    found, expected = vf.solve(device, "lstd"), vf.solve(memory, "lstd")
    assert found.status == "converged"
    close(found.theta, expected.theta, rtol=1e-8)


@pytest.mark.parametrize("solver", ["krylov", "pdbg", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_certified_gap_holds_on_the_problem_in_memory(kind, solver):
    memory, device = both(kind, n=2000, d=20)
    found = vf.solve(device, solver, tol=1e-8)
    assert found.status == "converged"
    assert found.gap <= 1e-8
    assert Exact(memory).gap(found.theta) <= 1.001 * found.gap + 1e-24  # but for rounding


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("kind", ["trace", "shuffled trace", "dual"])
def test_sketched_rows_estimate_the_moments_and_come_in_blocks(kind, cross):
    memory, device = both(kind, n=4000, d=4)
    size, blocks = 1000, []
    for block in device.sketched_rows(
        size, np.random.default_rng(0), cross=cross, traces=True, dtype=np.float32, block_rows=300
    ):
        blocks.append([None if rows is None else rows.astype(np.float64) for rows in block])
    assert [len(psi) for psi, _, _ in blocks] == [300, 300, 300, 100]
    C = sum(psi.T @ psi for psi, _, _ in blocks)
    close(C, memory.second_moment, rtol=0.2)
    assert all((v is None) == (not cross) for *_, v in blocks)
    if cross:
        close(sum(u.T @ v for _, u, v in blocks), memory.A, rtol=0.4)


def test_products_in_float32_are_refined_to_float64():
    memory, device = both("ratio", n=3000, d=30)
    found = vf.solve(device, vf.solvers.LSTD(gram="float32"))
    assert found.status == "converged"
    close(found.theta, vf.solve(memory, "lstd").theta, rtol=1e-8)


def test_imprecise_float32_products_are_repeated_in_float64_and_the_message_says_so():
    memory = cosines(3000, 25, spread=0.1)
    assert np.linalg.cond(memory.A) > 1e8
    rows = torch.from_numpy(memory.phi.matrix)
    device = vf.Problem.from_rows(rows, memory.now, memory.next, memory.reward, memory.discount)
    result = vf.solve(device, vf.solvers.LSTD(gram="float32"), tol=1e-10)
    assert result.status == "converged"
    assert "not precise enough; they were computed again in float64" in result.message
    assert Exact(memory).gap(result.theta) <= 1e-10


def test_steps_may_be_tensors_too_and_columns_without_data_get_weight_0():
    log = trajectory_log()
    rows = np.column_stack([log.Phi, np.zeros(len(log.Phi))])
    rows[np.setdiff1d(np.arange(len(rows)), log.now), -1] = 1.0  # only in rows that no step starts from
    arguments = log.now, log.next, log.reward, log.discount
    memory = vf.Problem.from_rows(rows, *arguments, episode=log.episode)
    tensors = (torch.from_numpy(np.ascontiguousarray(column)) for column in (rows, *arguments))
    device = vf.Problem.from_rows(*tensors, episode=torch.from_numpy(log.episode))
    assert isinstance(device, DeviceProblem)
    assert list(device.dead) == list(memory.dead) == [8]
    found = vf.solve(device, "krylov")
    assert found.dead == (8,)
    assert found.theta[8] == 0
    close(vf.solve(device, "lstd").theta, vf.solve(memory, "lstd").theta, rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_svrg_takes_at_most_13_tenths_of_the_passes_in_memory_to_the_same_gap(kind):
    memory, device = both(kind, n=20_000, d=20)
    found, expected = (vf.solve(problem, "svrg", tol=1e-8, seed=1) for problem in (device, memory))
    assert found.status == expected.status == "converged"
    assert found.gap <= 1e-8
    assert Exact(memory).gap(found.theta) <= 1.001 * found.gap + 1e-24  # but for rounding
    assert found.passes <= 1.3 * expected.passes
    assert np.array_equal(vf.solve(device, "svrg", tol=1e-8, seed=1).theta, found.theta)


def test_steps_are_drawn_with_their_probabilities_and_the_same_for_the_same_seed():
    weight = np.array([0.5, 1.0, 2.0, 2.0])
    places = torch.tensor([0, 2, 3, 5])
    sampler = Sampler(SimpleNamespace(theta=np.eye(2), w=np.eye(2), weight=weight), places)
    drawn, weights = sampler.draw(80_000, seed=3)
    expected = 80_000 / weight / (1 / weight).sum()
    counts = torch.bincount(drawn, minlength=6)[places].numpy()
    np.testing.assert_allclose(counts, expected, atol=1)  # stratified
    np.testing.assert_array_equal(weights.numpy(), weight[np.searchsorted(places.numpy(), drawn.numpy())])
    assert (drawn[1:] < drawn[:-1]).any()
    assert torch.equal(sampler.draw(80_000, seed=3)[0], drawn)
    assert not torch.equal(sampler.draw(80_000, seed=4)[0], drawn)


@pytest.mark.parametrize("kind", ["trace", "shuffled trace", "dual ridge trace"])
def test_trace_rows_equal_those_of_plain_loops(kind, monkeypatch):
    monkeypatch.setattr(device_rows, "CPU_BLOCK_BYTES", 8 * 8 * 100)  # blocks of at most 100 rows
    _, device = both(kind)
    U = np.array([step[0] for step in naive.steps(trajectory_log(**KINDS[kind]))])
    np.testing.assert_allclose(device._u[device._places].numpy(), U, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["trace", "shuffled trace", "dual", "identity", "ratio"])
def test_steps_over_mini_batches_equal_those_in_memory(kind):
    memory, device = both(kind, n=200)
    chosen = sketched_preconditioner(memory, 200)
    rng = np.random.default_rng(3)
    gradient = memory.B(rng.standard_normal(memory.d), rng.standard_normal(memory.k))
    plan = BatchPlan(chosen, gradient, 50, 7, 0.02, 0.05)
    drawn = Sampler(chosen, torch.arange(200)).draw(50, int(np.random.default_rng(5).integers(1 << 31)))[0].numpy()
    same = SimpleNamespace(theta=chosen.theta, w=chosen.w, weight=chosen.weight, draw=lambda *_: drawn)
    expected = batch_steps(memory, plan._replace(sampling=same), rng)
    for one, other in zip(device.batch_steps(plan, np.random.default_rng(5)), expected, strict=True):
        close(one, other, rtol=1e-9)


@pytest.mark.parametrize("settings", [{"step_theta": 0.1, "step_w": 0.1}, {"block": 16}, {"steps": "theorem"}])
def test_svrg_refuses_steps_through_single_rows(settings):
    _, device = both("on-policy")
    with pytest.raises(ValueError, match="Leave out step_theta, step_w, steps and block, or give the rows as a NumPy"):
        vf.solve(device, vf.solvers.SVRG(**settings))


def test_trace_rows_that_do_not_fit_are_refused(monkeypatch):
    _, device = both("trace", n=2000)
    monkeypatch.setattr(memory_module, "memory_limit", lambda: 100_000)
    with pytest.raises(MemoryError, match="SVRG with traces stores 2000 trace rows"):
        device._u  # noqa: B018


@pytest.mark.parametrize("solver", ["saga", "catalyst", "gtd2", "recursive-lstd"])
def test_solvers_that_step_through_single_rows_refuse(solver):
    _, device = both("on-policy")
    with pytest.raises(ValueError, match="device"):
        vf.solve(device, solver)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"now": [0, 99]}, "now\\[1\\] is 99, but there are 4 rows"),
        ({"ratio": [1.0, -1.0]}, "ratio is -1.0 at step 1"),
        ({"ratio": [1e60, 1.0]}, "ratio is 1e\\+60 at step 0"),
        ({"reward": [1e40, 0.0]}, "Rewards reach 1e\\+40"),
        ({"trace": 2}, "trace is 2; it must lie between 0 and 1"),
        ({"metric": "C2"}, "metric is 'C2'; it must be \"C\""),
        ({"dual_rows": torch.ones(4, 1)}, "There are 1 dual features for 2 features"),
        ({"now": [], "next": [], "reward": []}, "The log is empty"),
    ],
)
def test_wrong_arguments_are_refused_as_in_memory(change, message):
    arguments = {
        "Phi": torch.arange(8.0).reshape(4, 2), "now": [0, 1], "next": [1, 2], "reward": [1.0, 2.0], "discount": 0.9
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        vf.Problem.from_rows(**{**arguments, **change})
