"""Evaluations whose reports are tested, and a strict HTML parser."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np

import valuefit as vf
from helpers.small_mdp import SmallMDP
from valuefit.checks.check import Check
from valuefit.datasets import mountain_car
from valuefit.features import Tiles
from valuefit.policies.policy import find_policy

HOSTILE = ("<script>alert(1)</script>", "[/]")  # markup of HTML and of rich
VOID = {"meta", "link", "img", "br", "hr", "input"}  # elements without an end tag


class Page(HTMLParser):
    """Elements in document order as [tag, attributes, text inside]; asserts that tags are closed in the right order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"duplicate attribute in {tag}"
        element = [tag, dict(attrs), ""]
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a start tag"
        assert self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1][0]}"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def all(self, *tags):
        return [element for element in self.elements if element[0] in tags]

    @property
    def text(self):
        return " ".join(self.all("body")[0][2].split())


def car(**settings):
    log = mountain_car.sarsa(episodes=100).log(6000, seed=2)
    tiles = Tiles(4, 6, low=mountain_car.LOW, high=mountain_car.HIGH)
    return vf.evaluate(log, **({"features": tiles} | settings))


def one_hot():
    return vf.evaluate(SmallMDP().log(200), discount=0.9)


def pairs():
    mdp = SmallMDP(off_policy=True)
    return vf.evaluate(mdp.log(100), discount=0.9, policy=mdp.policy, values="state-action")


def hostile():
    """Off-policy, five dimensions, with warnings, and with markup in all names."""
    rng = np.random.default_rng(0)
    n = 2000
    x = rng.normal(size=(n, 5))
    log = vf.Transitions.from_arrays(
        x, 5 * x[:, 1] + 3 * x[:, 3] + 0.2 * rng.normal(size=n), terminated=np.arange(n) % 40 == 39,
        ratio=np.exp(2.2 * rng.normal(size=n)),
    )  # fmt: skip
    names = ("speed", HOSTILE[0], "a\x00b\u202e", HOSTILE[1], "a long name of a column, longer than a label may be")
    log = replace(log, names=names, source=f"logs/{HOSTILE[0]}\udcff{HOSTILE[1]}.parquet")
    evaluation = vf.evaluate(log, discount=0.9, features="identity")
    policy = find_policy(np.full(n, 0.5))
    return replace(
        evaluation,
        fit=replace(evaluation.fit, policy=replace(policy, name=f"policy {HOSTILE[0]}")),
        notes=[*evaluation.notes, f"note {HOSTILE[0]} {HOSTILE[1]} & more"],
        checks=(*evaluation.checks, Check("hostile", "warn", f"warning {HOSTILE[0]} 'quoted' \"twice\"")),
    )


def stopped():
    """A solver that did not converge, with a convergence curve."""
    return car(features="fourier:order=3", solver="svrg", max_passes=30)


def tiny():
    log = vf.Transitions.from_arrays(np.ones((1, 1)), np.ones(1), terminated=[True])
    return vf.evaluate(log, features="identity")


def long_stream():
    """Many states, one episode that never terminates, an iterative solver."""
    from valuefit.datasets.mdp import random_mdp

    return vf.evaluate(random_mdp(120, 3, 5).log(3000), discount=0.9, solver="saga")


KINDS = {
    "car": cache(car), "one-hot": cache(one_hot), "pairs": cache(pairs), "hostile": cache(hostile),
    "stopped": cache(stopped), "tiny": cache(tiny), "stream": cache(long_stream),
}  # fmt: skip
