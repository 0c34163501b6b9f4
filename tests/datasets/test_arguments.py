"""Wrong arguments of the generators are refused in one sentence, before anything is drawn."""

import pytest

import valuefit as vf

data = vf.datasets


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.ar1_log("5"), "steps is '5'; it must be a whole number, 1 or more"),
        (lambda: data.ar1_log(5, memory=1), "memory is 1; it must lie strictly between -1 and 1"),
        (lambda: data.ar1_log(5, dimensions=[2]), r"dimensions is \[2\]; it must be a whole number"),
        (lambda: data.fourier_features(3, spread=float("nan")), "spread is nan; it must be a finite number"),
        (lambda: data.baird_log(-1), "steps is -1; it must be a whole number, 1 or more"),
        (lambda: data.boyan_log(seed=0.5), "seed is 0.5; it must be a whole number, 0 or more"),
        (lambda: data.boyan_log(None), "episodes is None; it must be a whole number, 1 or more"),
        (lambda: data.random_walk_log(behaviour=1.5), "behaviour is 1.5; it must lie between 0 and 1"),
        (lambda: data.random_walk_value(discount=10**400), "discount is a whole number of about 398 digits"),
        (lambda: data.random_mdp(0), "states is 0; it must be a whole number, 1 or more"),
        (lambda: data.random_mdp(3, 2, 2).log(True), "steps is True; it must be a whole number"),
        (lambda: data.mountain_car.sarsa(episodes="x"), "episodes is 'x'; it must be a whole number"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: data.ar1_log(2**53),
        lambda: data.baird_log(2**53),
        lambda: data.boyan_log(2**53),
        lambda: data.random_walk_log(states=2**31),
        lambda: data.random_walk_value(states=2**31),
        lambda: data.random_mdp(2**31),
        lambda: data.fourier_features(2**40),
    ],
)
def test_what_does_not_fit_into_memory_is_refused_at_once(call):
    with pytest.raises(MemoryError, match=r"more than half of this machine's memory\. Ask for less"):
        call()
