"""Random messages to a node with a budget: its ledger says at least what has left.

What is checked after every message:

* an upload leaves only after a line was added to the ledger, and nothing before it changed;
* as many numbers were drawn from the system's noise, and of the very scale, as that line says;
* the Gaussian lines alone, by the closed form, stay within max-epsilon;
* with settings and a model of ordinary size the upload is finite, and the same message a second
  time gives other numbers;
* everything else is an error of one line that names the agent.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from privet.core import algorithm, algorithms
from privet.core.key import keys_of
from privet.kernel import Problem
from privet.problems import L2, BinaryLogistic, MultinomialLogistic, Nonconvex, RidgeRegression
from redteam.harness import (
    PRIVATE,
    SETTINGS,
    Answer,
    Drawn,
    Node,
    differ,
    gaussian_epsilon,
    privet_json,
    read_answer,
    releases,
    spent,
)

BUDGET = 30.0
NUMBERS = (
    0, -1, 1, 2, 3, 0.1, 0.5, 1.0, 2.0, 5.0, 1e-6, 1e-30, 1e-100, 1e-101, 1e-160, 1e-320, 5e-324,
    1e6, 1e15, 1e100, 1e101, 1e154, 1e307, 1.7e308, math.inf, -math.inf, math.nan, 10**30, 2**62,
)  # fmt: skip
STRANGE = ("nan", "1.0", "", "-1", "inf", "1e-320", True, False, None, [], {}, [1.0], {"clip": 1.0})
TEXTS: dict[str, tuple[str, ...]] = {
    key.name: key.choices
    for name in PRIVATE
    for key in keys_of(algorithm(name).load_agent()).values()
    if key.choices
}
"""The choices of the keys that are texts, of every algorithm."""
TEXTS["perturbation"] += ("random", "homomorphic")  # another algorithm's
KEYS = tuple(sorted({*TEXTS, "secure-sum", *(key for name in PRIVATE for key in SETTINGS[name])}))
CORE = ("perturbation", "clip", "noise-scale", "noise-variance", "mechanism", "sparsifier", "dual")
"""Keys that decide how a release is noised: every second change is one of them."""
MODELS = (0.0, 1.0, -3.0, 1e3, 1e8, 1e30, 1e100, 1e200, 1e308, math.inf, math.nan)


def problem(kind: int) -> Problem:
    """Four losses, of which one is nobody's favourite; the largest row is far from the others."""
    rng = np.random.default_rng(kind)
    rows = rng.standard_normal((20, 4))
    rows[-1] *= 1e3
    signs = np.where(rng.random(20) < 0.5, 1.0, -1.0)
    if kind == 0:
        return BinaryLogistic(rows, signs, regularizer=L2(0.1))
    if kind == 1:
        return RidgeRegression(rows.astype(np.float32), signs.astype(np.float32))
    if kind == 2:
        return MultinomialLogistic(rows, (signs > 0).astype(int), 2, regularizer=L2(0.01))
    return BinaryLogistic(rows, signs, regularizer=Nonconvex(0.1))


def of_key(key: str) -> st.SearchStrategy[tuple[str, Any]]:
    """A key, and a value that is often one of another key's."""
    texts = st.sampled_from([text for choices in TEXTS.values() for text in choices])
    anything = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(STRANGE), texts)
    own = st.sampled_from(TEXTS.get(key, NUMBERS))
    return st.tuples(st.just(key), st.one_of(own, own, own, anything))


def hostile() -> st.SearchStrategy[tuple[str, list[tuple[str, Any]]]]:
    """An algorithm and what is changed of its settings: most often keys that it reads."""

    def of(name: str) -> st.SearchStrategy[tuple[str, list[tuple[str, Any]]]]:
        read = st.sampled_from(tuple(sorted(SETTINGS[name])))
        core = st.sampled_from([key for key in CORE if key in SETTINGS[name]])
        key = st.one_of(core, core, read, st.sampled_from(KEYS))
        return st.tuples(st.just(name), st.lists(key.flatmap(of_key), max_size=2))

    return st.sampled_from(PRIVATE).flatmap(of)


def ordinary(message: dict[str, Any]) -> bool:
    """Whether no number of a message is so large or small that noise may drown in rounding."""
    values = [v for v in message.values() if isinstance(v, int | float)]
    return message.get("set", "none") == "none" and all(
        v == 0 or 1e-3 <= abs(v) <= 1e3 for v in values
    )


class Coordinator(RuleBasedStateMachine):
    """Sends what it likes to one node."""

    patch: pytest.MonkeyPatch

    @initialize(kind=st.integers(0, 3), relation=st.sampled_from([None, "replace-one"]))
    def begin(self, kind: int, relation: str | None) -> None:
        self.patch = pytest.MonkeyPatch()
        self.folder = tempfile.TemporaryDirectory()
        self.drawn = Drawn(self.patch)
        self.node = Node(
            Path(self.folder.name), problem(kind), max_epsilon=BUDGET, relation=relation
        )
        self.before = b""
        self.answered: dict[str, Answer] = {}

    # ------------------------------------------------------------------ what is sent

    @rule(
        message=hostile(),
        model=st.one_of(st.sampled_from(MODELS[:4]), st.sampled_from(MODELS)),
        round_=st.sampled_from([1, 1, 2, 3, 0, -1, 2**62]),
        tag=st.sampled_from([0, 0, 1, 2, 7]),
        experiment=st.sampled_from(["e", "f"]),
        times=st.sampled_from([1, 1, 1, 2]),
    )
    def asks(
        self,
        message: tuple[str, list[tuple[str, Any]]],
        model: float,
        round_: int,
        tag: int,
        experiment: str,
        times: int,
    ) -> None:
        name, changes = message
        changed = {key.replace("-", "_"): value for key, value in changes}
        where: dict[str, Any] = {"round_": round_, "tag": tag, "experiment": experiment}
        uploads = []
        for _ in range(times):
            with np.errstate(all="ignore"):
                reply = self.node.send_train(name, model, **where, **changed)
            answer = read_answer(reply, name, round_)
            self.judge(answer, {**SETTINGS[name], **dict(changes)}, model)
            if answer.upload is not None:
                uploads.append(answer.upload)
        if len(uploads) == 2 and ordinary({**dict(changes), "model": model}):
            assert differ(*uploads)

    @rule(
        name=st.sampled_from(PRIVATE),
        shape=st.sampled_from([(), (1,), (3,), (4, 1), (2, 4), (0,), (5,)]),
        dtype=st.sampled_from(["float64", "float32", "int64", "uint8"]),
        bad=st.sampled_from(["broadcast", "state"]),
    )
    def sends_other_arrays(self, name: str, shape: Any, dtype: str, bad: str) -> None:
        """A model or a state of another shape or dtype than the node's."""
        odd = np.ones(shape, dtype)
        keys = ("x", "y", "w", "c", "rho", "t") if bad == "broadcast" else (
            "x", "z", "lam", "inner", "c", "g"
        )  # fmt: skip
        answer = self.node.train(name, **{bad: dict.fromkeys(keys, odd)})
        self.judge(answer, SETTINGS[name], math.nan)

    @rule(name=st.sampled_from(sorted(set(algorithms()) - set(PRIVATE))))
    def asks_for_what_has_no_noise(self, name: str) -> None:
        everything = {k: v for settings in SETTINGS.values() for k, v in settings.items()}
        reply = self.node.send_raw(name, json.dumps({**everything, "epsilon": 0.1}))
        assert reply.has_error()

    @rule(name=st.sampled_from(sorted(algorithms())), quiet=st.booleans())
    def enrols_and_evaluates(self, name: str, quiet: bool) -> None:
        self.node.enrol(name, quiet=quiet)
        assert self.node.evaluate().has_error()

    # ------------------------------------------------------------------ what must hold

    def judge(self, answer: Answer, asked: dict[str, Any], model: float) -> None:
        count, scales = self.drawn.take()
        after = self.node.written
        if answer.upload is None:
            assert answer.refusal is not None
            assert answer.refusal.startswith("agent me: ") or answer.refusal == "need-state"
            assert "\n" not in answer.refusal
            self.before = after
            return
        assert after.startswith(self.before)
        assert after.count(b"\n") == self.before.count(b"\n") + 1
        charged = releases(self.node)[-1]
        draws = charged.get("count", 1) * charged.get("steps", 1)
        assert charged["mechanism"] in ("gaussian", "laplace")
        assert 1e-100 <= charged["scale"] <= 1e100
        assert 1e-100 <= charged["sensitivity"] <= 1e100
        assert scales == {charged["scale"]}
        if asked.get("sparsifier", "none") == "none":
            assert count == draws * self.node.dim
        else:
            assert count % draws == 0
            assert 1 <= count // draws <= self.node.dim
        if ordinary({**asked, "model": model}):
            assert np.isfinite(answer.upload).all()
        self.before = after

    @invariant()
    def within_the_budget(self) -> None:
        if hasattr(self, "node"):
            assert gaussian_epsilon(releases(self.node)) <= BUDGET

    def teardown(self) -> None:
        if not hasattr(self, "node"):
            return
        try:
            charged = releases(self.node)
            if charged:
                shown = privet_json("ledger", str(self.node.ledger))
                assert shown["messages"] == len(charged)
                epsilon = spent(self.node.ledger)
                # The rounding to the grid is charged beside what the lines name: 2^-12 of it.
                least = gaussian_epsilon(charged)
                assert least * (1 - 1e-9) <= epsilon <= BUDGET
                if all(release["mechanism"] == "gaussian" for release in charged):
                    assert epsilon <= least * 1.001
        finally:
            self.patch.undo()
            self.folder.cleanup()


# A failure is told as it was found: at most so many messages, and noise differs every time.
Coordinator.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TestCoordinator = pytest.mark.filterwarnings("ignore::RuntimeWarning")(Coordinator.TestCase)
