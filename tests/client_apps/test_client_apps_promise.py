"""The promise to a node with a budget, for every algorithm there is and whatever a server sends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from privet.client_apps import client_app
from privet.client_apps.local_sgd import local_sgd_app
from privet.privacy import SystemNoise, key_pair
from privet.problems import L2, BinaryLogistic
from privet.sim.engine import InlineGrid
from privet.strategies.half import grouped
from privet.wire import ENROL, REFUSED, algorithms, pack, resolve, ring
from privet.wire.contract import (
    CONTRACT_VERSION,
    agent_record,
    decode_settings,
    encode_settings,
    read_update,
    shared_record,
)
from privet.wire.enrolment import read_enrolment
from privet.wire.payload import encoded
from privet.wire.rosters import with_roster
from privet.wire.sparse import encode

DIM = 3
NOISE: dict[str, dict[str, Any]] = {
    "fed-plt": {"local-solver": "noisy-gd", "noise-variance": 1.0},
    "dp-iadmm": {"noise-scale": 1.0},
    "fed-pdm": {"noise-scale": 1.0, "max-local-steps": 1},
    "fed-dyn": {"noise-scale": 1.0, "max-local-steps": 1},
    "scaffold": {"noise-scale": 1.0, "max-local-steps": 1},
    "dp-fedsgd": {"noise-scale": 1.0, "max-local-steps": 1},
}
"""What makes an algorithm's upload a noised one; the others have no noise of their own."""
BOUNDS = {"clip": 1.0, "row-norm": 1.0, "batch": "full"}
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


def problem(flip: float = 1.0) -> BinaryLogistic:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, DIM))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    rows[0] *= flip
    return BinaryLogistic(rows, np.where(rng.random(20) < 0.5, 1.0, -1.0), regularizer=L2(0.1))


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
        (reply,) = self.grid.send_and_receive([Message(content, 1000, kind)])
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
    config = resolve({"algorithm": name, **keys}, name, found.keys)
    half = found.load_strategy().from_config(config).half
    state = half.initialise(np.zeros(DIM), 1)
    group = None
    units = grouped(half)
    if units is not None:
        state = units.place(state, 0, "me", "")
        group = units.group(state, 0)
    state, broadcast = half.broadcast(state)
    if units is not None:
        broadcast = {**broadcast, **units.broadcast_to(state, group)}
    return {**half.settings(), "seed": 0}, broadcast, half.recovery(state, 0)


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
    assert "without noise" in reply.error.reason
    assert site.charges == 0


MASKABLE = {"fed-plt", "dp-iadmm", "fed-pdm", "gfl"}


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
    monkeypatch.setattr(BinaryLogistic, "clipped_gradient", breaks)
    roster = None if roster is None else {**roster, "me": site.enrol(name)}
    reply = site.train(name, settings, broadcast, state, round_=2, roster=roster)
    assert reply.error.reason == "agent me: RuntimeError (text withheld: private run)"
    assert site.charges == 2


@pytest.mark.parametrize("name", sorted(NOISE))
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"noise-seed": 0}, "noise-seed"),
        ({"clip": 0.0}, ""),
        ({"clip": 2.5}, "max-clip"),
        ({"noise-scale": 1e-9, "noise-variance": 1e-18}, "min-noise"),
        ({"noise-scale": 0.0, "noise-variance": 0.0}, ""),
        ({"clip": float("nan")}, ""),
        ({"noise-scale": float("inf"), "noise-variance": float("inf")}, ""),
    ],
)
def test_no_setting_gets_around_the_rules(
    name: str, change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    site = Site(tmp_path, **{"max-clip": 1.0, "min-noise": 1e-3})
    settings, broadcast, state = opening(name, **BOUNDS, **NOISE[name])
    settings |= {key: value for key, value in change.items() if key in {*settings, "noise-seed"}}
    reply = site.train(name, settings, broadcast, state)
    assert reply.has_error()
    assert reason in reply.error.reason


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
        reply = site.train("dp-iadmm", settings, {**broadcast, "w": w}, {"lam": lam, "inner": zero})
        assert reply.has_error()
    for name in ("dp-fedsgd", "fed-dyn", "scaffold"):
        settings, broadcast, _ = opening(name, **BOUNDS, **NOISE[name])
        for x in (np.zeros((DIM, 1)), np.zeros((2, DIM)), np.zeros(1), np.array(0.0)):
            reply = site.train(name, settings, {**broadcast, "x": x}, {"c": zero, "g": zero})
            assert "model has shape" in reply.error.reason


@pytest.mark.parametrize("perturbation", ["objective", "output"])
@pytest.mark.parametrize(
    ("changes", "inner"),
    [
        ({}, 1e16),  # lost beside z / eta
        ({"w": np.full(DIM, 2e12), "rho": np.array(1e4)}, 0.0),  # in output noise of scale 1e-4
        ({"rho": np.array(-0.5)}, 0.0),
        ({"rho": np.array(np.inf)}, 0.0),
        ({"t": np.array(10**30, np.float64)}, 1e3),
    ],
)
def test_noise_of_dp_iadmm_is_heard_beside_everything_it_is_added_to(
    perturbation: str, changes: dict[str, Any], inner: float, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    keys = {**BOUNDS, **NOISE["dp-iadmm"], "perturbation": perturbation}
    settings, broadcast, _ = opening("dp-iadmm", **keys)
    state = {"lam": np.zeros(DIM), "inner": np.full(DIM, inner)}
    assert site.train(
        "dp-iadmm", settings, broadcast, {**state, "inner": state["lam"]}
    ).has_content()
    reply = site.train("dp-iadmm", settings, {**broadcast, **changes}, state)
    assert reply.has_error()


@pytest.mark.parametrize(
    ("settings", "y"),
    [
        ({}, np.full(DIM, -(2**62))),  # -2^63, twice that, has no absolute value among the integers
        ({"step-size": 100.0, "rho": 0.01}, np.full(DIM, 1e13)),
        ({"step-size": 0.1}, np.full(DIM, np.nan)),
        ({"step-size": 0.1}, np.full(DIM, 1e300)),
    ],
)
def test_noise_of_fed_plt_is_heard(settings: dict[str, Any], y: Any, tmp_path: Path) -> None:
    site = Site(tmp_path)
    found, _, _ = opening("fed-plt", **BOUNDS, **NOISE["fed-plt"])
    calm = {"x": np.zeros(DIM), "z": np.zeros(DIM)}
    state = {**calm, "z": np.zeros(DIM, y.dtype)}
    assert site.train("fed-plt", {**found, **settings}, {"y": calm["x"]}, calm).has_content()
    assert site.train("fed-plt", {**found, **settings}, {"y": y}, state).has_error()


# ------------------------------------------------------------------ the private dual of FedPDM


PDM = {**BOUNDS, "max-local-steps": 1, "noise-scale": 1.0, "dual": "private"}


def pdm(site: Site, round_: int, tag: int, **changes: Any) -> Message:
    config = {**PDM, **changes}
    settings, _, _ = opening("fed-pdm", **config)
    sent = encoded(encode(np.zeros(DIM)))
    return site.train("fed-pdm", settings, sent, tag=tag, round_=round_)


@pytest.mark.parametrize(
    "looser",
    [
        # As if the dual were public, with next to no step: y is lam / rho and next to no noise.
        {"dual": "public", "step-size-base": 1e-6, "noise-scale": 1e-5},
        {"clip": 1e-6, "noise-scale": 1e-5},
        {"dual": "public", "clipping": "batch"},
    ],
)
def test_a_private_dual_is_not_released_under_other_bounds(
    looser: dict[str, Any], tmp_path: Path
) -> None:
    """Noise for this round's small bounds would not cover what the dual holds of an older one."""
    site = Site(tmp_path)
    assert pdm(site, 1, 0).has_content()
    reply = pdm(site, 2, 1, **looser)
    assert "looser bounds" in reply.error.reason
    assert pdm(site, 2, 1).has_content()  # the round as it began goes on
    assert pdm(site, 3, 2, **{"clipping": "batch", "noise-scale": 9.0}).has_content()  # stricter
    assert site.charges == 4


def test_the_dual_of_a_public_run_knows_no_bounds(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for round_, clip in ((1, 1.0), (2, 1e-3)):
        assert pdm(site, round_, round_ - 1, dual="public", clip=clip).has_content()


def test_a_private_dual_beyond_the_noise_betrays_nothing_by_a_refusal() -> None:
    """The dual is pushed to where noise is just not lost; one record must not decide."""
    half = algorithms()["fed-pdm"].load_agent().from_settings({**PDM, "rho": 1.0})
    edge = 1.0 / (16 * np.finfo(float).eps)
    from privet.client_apps.half import Streams

    for lam in (np.full(DIM, edge), np.full(DIM, edge * 2), np.full(DIM, -1e99)):
        for flip in (1.0, -1.0):
            done = half.local_update(
                {"lam": lam},
                encoded(encode(np.zeros(DIM))),
                problem(flip),
                Streams(0, "me", 1),
                SystemNoise(),
            )
            assert np.abs(done.agreed).max() <= 4 * edge


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

    monkeypatch.setattr(BinaryLogistic, "clipped_gradient", breaks)
    (reply,) = grid.send_and_receive([Message(asked, 1000, "train")])
    assert reply.error.reason.endswith("RuntimeError (text withheld: private run)")


def test_settings_survive_the_wire_as_they_were_tested() -> None:
    """NaN and infinity travel in JSON: what is refused above was really asked for."""
    text = encode_settings({"clip": float("nan"), "noise-scale": float("inf")})
    found = decode_settings(text)
    assert np.isnan(found["clip"])
    assert found["noise-scale"] == np.inf
    assert json.loads(text)["noise-scale"] == np.inf
