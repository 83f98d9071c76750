"""The promise to a node with a budget, for every algorithm there is and whatever a server sends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from privet.agents.half import Streams
from privet.client_apps import client_app
from privet.client_apps.local_sgd import local_sgd_app
from privet.core import algorithms
from privet.kernel import NoCertificateError, Perturber, SystemNoise, Told, key_pair
from privet.problems import L2, BinaryLogistic, public_facts
from privet.rounds.half import Turn, grouped
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.wire import ENROL, REFUSED, pack, ring
from privet.wire.contract import (
    CONTRACT_VERSION,
    agent_record,
    decode_settings,
    encode_settings,
    read_update,
    shared_record,
)
from privet.wire.enrolment import read_enrolment
from privet.wire.payload import ENCODED, encoded
from privet.wire.rosters import with_roster
from privet.wire.sparse import decode, encode
from support.opened import held, opened
from support.told import own_log

DIM = 3
NOISE: dict[str, dict[str, Any]] = {
    "fed-plt": {"local-solver": "noisy-gd", "noise-variance": 1.0},
    "dp-iadmm": {"noise-scale": 1.0},
    "fed-pdm": {"noise-scale": 1.0, "max-local-steps": 1},
    "fed-dyn": {"noise-scale": 1.0, "max-local-steps": 1},
    "scaffold": {"noise-scale": 1.0, "max-local-steps": 1},
    "dp-fedsgd": {"noise-scale": 1.0},
    "dp-fedavg": {"noise-scale": 1.0, "max-local-steps": 1},
}
"""What makes an algorithm's upload a noised one; the others have no noise of their own."""
BOUNDS = {"clip": 1.0, "row-norm": 1.0}
QUIET = {
    "dp-iadmm": {"perturbation": "none"},
    "fed-plt": {"clip": 0.0},  # with a clip its strategy insists on noise
}
HUGE = {
    "noise-scale": 1e6,
    "noise-variance": 1e6,
    "clip": 0.5,
    "row-norm": 1.0,
    "epsilon": 0.1,
    "local-solver": "noisy-gd",
    "perturbation": "objective",
    "secure-sum": False,
}
"""Settings that promise noise to whoever reads them."""


def problem(flip: float = 1.0, dtype: str = "f8") -> BinaryLogistic:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, DIM))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    rows[0] *= flip
    labels = np.where(rng.random(20) < 0.5, 1.0, -1.0)
    return BinaryLogistic(rows.astype(dtype), labels, regularizer=L2(0.1))


class Site:
    """One node with a budget, and a coordinator that writes what it likes."""

    def __init__(self, folder: Path, name: str | None = None, **node: Any) -> None:
        self.ledger = folder / "ledger.jsonl"
        rules = {"max-epsilon": 1e3, "delta": 1e-5, "ledger-path": str(self.ledger)}
        app = client_app(name, lambda context: problem(), train_metrics=True)
        self.grid = InlineGrid(app, [{"agent": "me", **rules, **node}])

    @property
    def charges(self) -> int:
        """Lines of the ledger."""
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0

    def send(self, content: RecordDict, kind: str = "train") -> Message:
        with own_log() as said:
            (reply,) = self.grid.send_and_receive([Message(content, 1000, kind)])
        self.said = said.text
        return reply

    def train(
        self,
        name: str,
        settings: Mapping[str, Any],
        broadcast: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        *,
        tag: int = 0,
        round_: int = 1,
        roster: Mapping[str, bytes] | None = None,
    ) -> Message:
        shared = shared_record(name, 1, "e", round_, encode_settings(settings), broadcast)
        if roster is not None:
            shared = with_roster(shared, 1, roster)
        own = agent_record(tag, None if state is None else pack(state))
        return self.send(RecordDict({"privet": shared, "privet.agent": own}))

    def enrol(self, name: str) -> bytes:
        """Enrol for a secure sum and return the node's public key."""
        asked = {"contract": CONTRACT_VERSION, "protocol": name, "version": 1, "experiment": "e"}
        question = ConfigRecord({**asked, "quiet": False, "secure-sum": True})
        return read_enrolment(self.send(RecordDict({"privet": question}), ENROL).content).public_key


def opening(name: str, **keys: Any) -> tuple[dict[str, Any], Any, Any]:
    """Return settings, broadcast and the agent's state of a first round, as the server says."""
    found = algorithms()[name]
    config = read_config({"algorithm": name, **keys})
    half = found.load_strategy().from_config(config).half
    state = half.initialise(np.zeros(DIM), 1)
    group = None
    units = grouped(half)
    if units is not None:
        state = units.place(state, 0, "me", "")
        group = units.group(state, 0)
    state, broadcast = half.broadcast(state, Turn(1))
    if units is not None:
        broadcast = {**broadcast, **units.broadcast_to(state, group)}
    return {**half.settings(), "seed": 0}, broadcast, half.recovery_of(state, 0, np.zeros(DIM))


# ------------------------------------------------------------------ every algorithm


@pytest.mark.parametrize("masked", [False, True], ids=["clear", "masked"])
@pytest.mark.parametrize("name", sorted(algorithms()))
def test_nothing_without_noise_leaves(name: str, masked: bool, tmp_path: Path) -> None:
    site = Site(tmp_path)
    keys = {**QUIET.get(name, {}), "secure-sum": masked and name in MASKABLE}
    settings, broadcast, state = opening(name, **keys)
    roster = None
    if masked:
        roster = {"me": site.enrol(name), "b": key_pair().public, "c": key_pair().public}
        settings["secure-sum"] = True
    reply = site.train(name, settings, broadcast, state, roster=roster)
    assert reply.has_error()
    assert reply.error.code == REFUSED
    assert re.search("without (noise|clipping)", reply.error.reason)
    assert site.charges == 0


MASKABLE = {"fed-plt", "dp-iadmm", "dp-fedavg", "fed-pdm", "gfl"}


@pytest.mark.parametrize("name", sorted(set(algorithms()) - set(NOISE)))
def test_settings_that_speak_of_noise_make_no_release_of_one_without(
    name: str, tmp_path: Path
) -> None:
    """Every key that switches noise on elsewhere, in the message of an algorithm that has none."""
    site = Site(tmp_path)
    settings, broadcast, state = opening(name)
    for extra in (HUGE, {k: v for k, v in HUGE.items() if k != "local-solver"}):
        reply = site.train(name, {**settings, **extra}, broadcast, state)
        assert reply.has_error()
    assert site.charges == 0


@pytest.mark.parametrize("masked", [False, True], ids=["clear", "masked"])
@pytest.mark.parametrize("name", sorted(NOISE))
def test_what_is_noised_is_paid_for_before_it_leaves(
    name: str, masked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if masked and name not in MASKABLE:
        return
    site = Site(tmp_path)
    settings, broadcast, state = opening(name, **BOUNDS, **NOISE[name], **{"secure-sum": masked})
    roster = None
    if masked:
        roster = {"me": site.enrol(name), "b": key_pair().public, "c": key_pair().public}
        settings["secure-sum"] = True
    reply = site.train(name, settings, broadcast, state, roster=roster)
    assert reply.has_content(), reply.error.reason
    assert site.charges == 1
    update = read_update(reply.content, name, 1, 1)
    assert 0 < update.epsilon < np.inf
    assert set(reply.content) == {"privet"}  # no metrics beside the release
    if masked:
        assert update.digest == 0
        assert "members" in ring.from_bytes(update.payload).arrays()

    def breaks(*args: Any, **options: Any) -> Any:
        raise RuntimeError("patient 4711")

    # The work fails: what it would have released is paid for all the same, and nothing is said.
    for work in ("clipped_term", "gradient"):
        monkeypatch.setattr(BinaryLogistic, work, breaks)
    roster = None if roster is None else {**roster, "me": site.enrol(name)}
    reply = site.train(name, settings, broadcast, state, round_=2, roster=roster)
    assert reply.error.reason == f"agent me: {Told.WORK}"
    assert "patient 4711" in site.said
    assert site.charges == 2


def test_evaluation_and_repeated_questions_get_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, "dp-fedsgd")
    model = ArrayRecord({"x": Array(np.zeros(DIM))})
    reply = site.send(RecordDict({"arrays": model, "config": ConfigRecord()}), "evaluate")
    assert reply.error.code == REFUSED
    keys = {site.enrol("dp-fedsgd") for _ in range(3)}
    assert len(keys) == 3
    settings, broadcast, state = opening("dp-fedsgd", **BOUNDS, **NOISE["dp-fedsgd"])
    for number in (1, 2, 3):  # the same round again and again
        reply = site.train("dp-fedsgd", settings, broadcast, state)
        assert "asked for an upload in the clear" in reply.error.reason
        other = shared_record("dp-fedsgd", 1, "f", 1, encode_settings(settings), broadcast)
        own = agent_record(0, pack(state or {}))
        reply = site.send(RecordDict({"privet": other, "privet.agent": own}))
        assert reply.has_content()
        assert site.charges == number


def test_an_agent_that_masks_declines_evaluation_whatever_the_question_said(tmp_path: Path) -> None:
    app = client_app("fed-plt", lambda context: problem())
    grid = InlineGrid(app, 1)
    asked = {"contract": CONTRACT_VERSION, "protocol": "fed-plt", "version": 1, "experiment": "e"}
    question = RecordDict({"privet": ConfigRecord({**asked, "quiet": False, "secure-sum": True})})
    model = RecordDict({"arrays": ArrayRecord({"x": Array(np.zeros(DIM))})})
    replies = [
        next(iter(grid.send_and_receive([Message(content, 1000, kind)])))
        for content, kind in ((model, "evaluate"), (question, ENROL), (model, "evaluate"))
    ]
    assert replies[0].has_content()
    assert replies[2].error.code == REFUSED


# ------------------------------------------------------------------ numbers on the wire


def test_one_draw_does_not_serve_all_coordinates(tmp_path: Path) -> None:
    """A model of one number would be noised by one draw, beside a state of as many as there are."""
    site = Site(tmp_path)
    settings, broadcast, _ = opening("dp-iadmm", **BOUNDS, **NOISE["dp-iadmm"])
    zero = np.zeros(DIM)
    one = np.zeros(1)
    for w, lam in ((one, one), (one, zero), (np.array(0.0), one)):
        reply = site.train("dp-iadmm", settings, {**broadcast, "w": w}, {"lam": lam, "z": zero})
        assert reply.has_error()
    for name in ("dp-fedsgd", "fed-dyn", "scaffold"):
        settings, broadcast, _ = opening(name, **BOUNDS, **NOISE[name])
        for x in (np.zeros((DIM, 1)), np.zeros((2, DIM)), np.zeros(1), np.array(0.0)):
            reply = site.train(name, settings, {**broadcast, "x": x}, {"c": zero, "g": zero})
            assert reply.error.reason == f"agent me: {Told.MESSAGE}"
            assert "array 'x' is of shape" in site.said


@pytest.mark.parametrize(
    ("perturbation", "changes", "inner"),
    [
        ("output", {}, 1e16),  # its rounding is larger than the grid of the noise
        ("output", {"w": np.full(DIM, 2e12), "rho": np.array(1e4)}, 0.0),
        ("objective", {"rho": np.array(-0.5)}, 0.0),
        ("output", {"rho": np.array(-0.5)}, 0.0),
        ("objective", {"rho": np.array(np.inf)}, 0.0),
        ("output", {"rho": np.array(np.inf)}, 0.0),
        ("output", {"t": np.array(10**30, np.float64)}, 1e3),
    ],
)
def test_noise_of_dp_iadmm_covers_the_arithmetic_before_it(
    perturbation: str, changes: dict[str, Any], inner: float, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    keys = {**BOUNDS, **NOISE["dp-iadmm"], "perturbation": perturbation}
    settings, broadcast, _ = opening("dp-iadmm", **keys)
    state = {"lam": np.zeros(DIM), "z": np.full(DIM, inner)}
    assert site.train("dp-iadmm", settings, broadcast, {**state, "z": state["lam"]}).has_content()
    reply = site.train("dp-iadmm", settings, {**broadcast, **changes}, state)
    assert reply.has_error()


@pytest.mark.parametrize(
    ("settings", "y"),
    [
        ({}, np.full(DIM, -(2**62))),  # -2^63, twice that, has no absolute value among the integers
        ({}, np.full(DIM, 1e13)),
        ({"step-size": 0.1}, np.full(DIM, np.nan)),
        ({"step-size": 0.1}, np.full(DIM, 1e300)),
    ],
)
def test_noise_of_fed_plt_covers_the_arithmetic_of_hidden_steps(
    settings: dict[str, Any], y: Any, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    found, _, _ = opening("fed-plt", **BOUNDS, **NOISE["fed-plt"])
    calm = {"x": np.zeros(DIM), "z": np.zeros(DIM)}
    state = {**calm, "z": np.zeros(DIM, y.dtype)}
    assert site.train("fed-plt", {**found, **settings}, {"y": calm["x"]}, calm).has_content()
    assert site.train("fed-plt", {**found, **settings}, {"y": y}, state).has_error()


# ------------------------------------------------------------------ charged is drawn

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NOISE),
    ("fed-plt", {"local-epochs": 1}),
    ("fed-plt", {"step-size": 50.0}),  # no contraction: a composition of the steps
    ("fed-plt", {"secure-sum": True}),
    ("dp-iadmm", {"perturbation": "output"}),
    ("dp-iadmm", {"perturbation": "output", "local-updates": 4, "set": "l2"}),
    ("dp-iadmm", {"local-updates": 4, "set": "box", "secure-sum": True}),
    ("dp-iadmm", {"mechanism": "laplace", "local-updates": 3}),
    ("dp-iadmm", {"mechanism": "laplace", "perturbation": "output"}),
    ("dp-iadmm", {"noise-scale": 0.0, "epsilon": 0.5, "eta-rule": "smooth"}),
    ("fed-pdm", {"max-local-steps": 5, "clip": 0.2, "batch": "sample", "batch-size": 4}),
    ("fed-pdm", {"max-local-steps": 5, "clipping": "batch", "secure-sum": True}),
    ("fed-pdm", {"max-local-steps": 3, "clip": 0.0}),
    *(
        ("fed-pdm", {"sparsifier": name, "alpha-u": 0.5})
        for name in ("rand-k", "public-top-k", "noisy-top-k")
    ),
    ("dp-fedavg", {"max-local-steps": 3, "clip": 0.1, "batch": "sample", "batch-size": 4}),
    *(
        (name, {**steps, "batch": "sample", "batch-size": 4, **clipping})
        for name, steps in (
            ("fed-dyn", {"max-local-steps": 3}),
            ("scaffold", {"max-local-steps": 3}),
            ("dp-fedsgd", {}),
        )
        for clipping in ({}, {"clipping": "batch"})
    ),
]
"""Every private half, in each way it has of making noise."""


def named(variant: Any) -> str:
    return variant if isinstance(variant, str) else ",".join(f"{k}={v}" for k, v in variant.items())


def first_round(name: str, keys: Mapping[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """Return the half, the broadcast and the state of a first round that is not masked."""
    settings, broadcast, state = opening(name, **{**BOUNDS, **NOISE[name], **keys})
    half = algorithms()[name].load_agent().from_settings(settings)
    return half, broadcast, state


def test_every_algorithm_that_can_be_private_is_exercised() -> None:
    """A noise key is what the calibration turns: who has one makes noise."""
    halves = {name: found.load_agent() for name, found in algorithms().items()}
    private = {name for name, half in halves.items() if getattr(half, "noise_key", "")}
    assert not private - set(NOISE), (
        f"give {sorted(private - set(NOISE))} a line in NOISE of {__file__}"
    )
    assert not set(NOISE) - private, f"NOISE of {__file__} has what makes no noise"


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(("name", "keys"), VARIANTS, ids=named)
def test_nothing_but_what_is_perturbed_reaches_a_reply(
    name: str, keys: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With constants in the place of what is noised, other records change no bit of what is kept
    or sent: everything un-noised is public."""
    half, broadcast, state = first_round(name, keys)
    answers = iter(np.random.default_rng(3).standard_normal((200, DIM)))
    given: list[Any] = []
    data = problem(dtype=dtype)
    other = BinaryLogistic(-data.features[::-1], data.labels, regularizer=L2(0.1))
    if not certified(half, data):
        assert dtype == "f4"
        with pytest.raises(NoCertificateError, match="float64"):
            half.release(public_facts(data), 1)
        return

    def perturb(self: Perturber, clipped: Any) -> Any:
        given.append(clipped.value)
        self.taken += 1
        return next(answers).copy()

    monkeypatch.setattr(Perturber, "perturb", perturb)
    left, handed = [], []
    for records in (data, other):
        made = held(half, records)
        facts = public_facts(made)
        answers = iter(np.random.default_rng(3).standard_normal((200, DIM)))
        given.clear()
        noise = Perturber(half.release(facts, 1), SystemNoise(), facts)
        sent = {k: cast(v, dtype) for k, v in broadcast.items()}
        start = {
            k: cast(v, dtype) for k, v in (state or half.restart(sent, public_facts(made))).items()
        }
        local = half.local_update(start, sent, opened(half, made, noise), Streams(0, "me", 1))
        noise.settle()
        left.append(
            [
                (key, np.asarray(value).tobytes())
                for part in (local.state, local.upload, dict(enumerate(local.agreed)))
                for key, value in sorted(part.items())
            ]
        )
        handed.append(np.array(given))
    assert left[0] == left[1]
    assert not np.array_equal(*handed)  # the records did come in


def certified(half: Any, data: Any) -> bool:
    """Whether a half has a price for a problem in this precision."""
    try:
        half.release(public_facts(data), 1)
    except NoCertificateError:
        return False
    return True


def cast(value: Any, dtype: str) -> Any:
    """Return a vector, dense or encoded, in another precision; anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        dense = decode(value.tobytes(), max_dim=DIM).to_dense().astype(dtype)
        return encoded(encode(dense))[ENCODED]
    if np.asarray(value).dtype.kind != "f" or not np.ndim(value):
        return value
    return np.asarray(value, dtype)


@pytest.mark.parametrize("name", sorted(NOISE))
@pytest.mark.parametrize("wrong", ["silent", "fewer", "more", "beside", "farther"])
def test_a_half_that_draws_other_than_charged_never_replies(
    wrong: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it computes, and for whatever reason: it has paid, and says nothing."""
    perturb, unaccounted = Perturber.perturb, Perturber.unaccounted

    def silent(self: Perturber, clipped: Any) -> Any:
        return np.array(clipped.value)

    def fewer(self: Perturber, clipped: Any) -> Any:
        if self.taken == self.release.draws - 1:
            return np.array(clipped.value)
        return perturb(self, clipped)

    def more(self: Perturber, clipped: Any) -> Any:
        perturb(self, clipped)
        return perturb(self, clipped)

    def beside(self: Perturber, clipped: Any) -> Any:
        return unaccounted(self, clipped.value, self.release.scale)

    def farther(self: Perturber, clipped: Any) -> Any:
        return perturb(self, clipped.scaled(1.001))

    monkeypatch.setattr(Perturber, "perturb", locals()[wrong])
    site = Site(tmp_path)
    settings, broadcast, state = opening(name, **BOUNDS, **NOISE[name])
    reply = site.train(name, settings, broadcast, state)
    assert reply.has_error()
    expected = {
        "silent": "0 draws were taken",
        "fewer": "draws were taken",
        "more": "more than the|draws were taken",
        "beside": "in addition to the noise that was charged",
        "farther": "more than the .* that were charged",
    }
    assert reply.error.reason in (f"agent me: {Told.DRAWS}", f"agent me: {Told.WORK}")
    assert re.search(expected[wrong], site.said)
    assert site.charges == 1
    assert "privet.state" not in site.grid.contexts[1000].state


def test_a_half_that_takes_one_gradient_is_charged_for_one(tmp_path: Path) -> None:
    """Whatever the message says of steps, which are no key of it."""
    site = Site(tmp_path)
    settings, broadcast, state = opening("dp-fedsgd", **BOUNDS, **NOISE["dp-fedsgd"])
    reply = site.train("dp-fedsgd", {**settings, "max-local-steps": 3}, broadcast, state)
    assert reply.has_content(), reply.error.reason
    (charge,) = map(json.loads, site.ledger.read_text().splitlines())
    assert charge["release"].get("count", 1) == 1


# ------------------------------------------------------------------ the private dual of FedPDM


def test_a_private_dual_of_another_round_does_not_come_out_under_a_public_one(
    tmp_path: Path,
) -> None:
    """A node with a budget takes part in no round that would leave one behind."""
    site = Site(tmp_path)
    for round_, dual in ((1, "public"), (2, "private"), (2, "public")):
        keys = {**BOUNDS, **NOISE["fed-pdm"], "dual": dual}
        settings, broadcast, _ = opening("fed-pdm", **keys)
        reply = site.train("fed-pdm", settings, broadcast, tag=round_ - 1, round_=round_)
        assert reply.has_content() == (dual == "public")
    assert site.charges == 2


# ------------------------------------------------------------------ other apps


def test_flowers_fed_avg_on_a_private_app_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = local_sgd_app(lambda context: problem(), clip=1.0, noise_scale=1.0, max_local_steps=1)
    grid = InlineGrid(app, 1)
    model = ArrayRecord({"x": Array(np.zeros(DIM))})
    asked = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 1})})
    (reply,) = grid.send_and_receive([Message(asked, 1000, "evaluate")])
    assert reply.error.code == REFUSED

    def breaks(*args: Any, **options: Any) -> Any:
        raise RuntimeError("patient 4711")

    monkeypatch.setattr(BinaryLogistic, "clipped_term", breaks)
    (reply,) = grid.send_and_receive([Message(asked, 1000, "train")])
    assert reply.error.reason.endswith(f": {Told.WORK}")


def test_settings_survive_the_wire_as_they_were_tested() -> None:
    """NaN and infinity travel in JSON: what is refused above was really asked for."""
    text = encode_settings({"clip": float("nan"), "noise-scale": float("inf")})
    found = decode_settings(text)
    assert np.isnan(found["clip"])
    assert found["noise-scale"] == np.inf
    assert json.loads(text)["noise-scale"] == np.inf
