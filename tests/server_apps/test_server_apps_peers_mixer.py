"""GFL's exchange between servers over real mutual TLS: same bits, failed links, restarts."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.core import ConfigError, RunError
from privet.server_apps.peers.messages import Shape
from privet.server_apps.peers.mixer import NetworkMixer
from privet.strategies.gfl.graph import graph_edges, metropolis
from privet.strategies.gfl.mixing import LocalMixer, Mixed, MixingInput, Perturbation
from privet.strategies.gfl.noise import SampledNoise
from support.graph_servers import Hosts, LossyLink, Mixers, at_once, rows, split
from support.graphs import without_edges

DIM = 5
SHAPE = Shape(DIM, "float64")
TRIANGLE = metropolis(graph_edges("complete", 3), 3)
PATH = metropolis(graph_edges("path", 3), 3)
SHORT = 2.0
"""Seconds that a lost edge is waited for; the others take 0.1 where 18 programs share two cores."""


def outgoing(
    round_: int, weights: Any, kind: str = "homomorphic", seed: int = 3, dtype: str = "float64"
) -> MixingInput:
    """Return made-up unit means with noise of variance 4 on their messages."""
    noise = None if kind == "none" else SampledNoise(4.0, seed=seed)
    models = np.random.default_rng([seed, round_]).standard_normal((len(weights), DIM))
    units = tuple(range(len(weights)))
    return Perturbation(kind, noise).outgoing(round_, units, models.astype(dtype), weights)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["none", "random", "homomorphic"])
def test_servers_compute_the_bits_of_one_process_that_hosts_all_units(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    local = LocalMixer(PATH)
    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, PATH, DIM, dtype=dtype) as mixers:
        for round_ in (1, 2, 3):
            sent = outgoing(round_, PATH, kind, dtype=dtype)
            mixed = mixers.mix(round_, split(sent))
            assert rows(mixed).tobytes() == local.mix(round_, sent).models.tobytes()
            assert all(m.dropped == () and m.notes == () for m in mixed.values())
            for one in mixed.values():  # independent noise stays in the sum, by who knows how much
                assert math.isnan(one.residual) if kind == "random" else one.residual == 0.0
        closing = outgoing(4, PATH, "none", dtype=dtype)
        mixed = mixers.mix(3, split(closing), step=1)
        assert rows(mixed).tobytes() == local.mix(3, closing, step=1).models.tobytes()


def test_noise_cancels_while_a_link_is_cut_for_two_rounds(tmp_path: Path) -> None:
    cut = (0, 1)
    effective = without_edges(TRIANGLE, [cut])
    local = LocalMixer(TRIANGLE, cut={2: [cut], 3: [cut]})
    with Hosts(tmp_path, 3, [cut]) as hosts, Mixers(hosts, TRIANGLE, DIM, SHORT) as mixers:
        for round_ in (1, 2, 3, 4):
            if round_ == 2:
                hosts.cut(cut)
            if round_ == 4:
                hosts.mend(cut)
            sent = outgoing(round_, TRIANGLE)
            mixed = mixers.mix(round_, split(sent))
            failed = round_ in (2, 3)
            # w = A' psi + (A' - I) g with the effective matrix A'; the noise sums to zero.
            weights = effective if failed else TRIANGLE
            noise = np.stack([sent.shared[unit] for unit in range(3)])
            expected = weights @ sent.models + (weights - np.eye(3)) @ noise
            np.testing.assert_allclose(rows(mixed), expected, rtol=0, atol=1e-14)
            np.testing.assert_allclose(
                rows(mixed).sum(axis=0), sent.models.sum(axis=0), rtol=0, atol=1e-14
            )
            assert rows(mixed).tobytes() == local.mix(round_, sent).models.tobytes()
            assert [mixed[unit].dropped for unit in range(3)] == (
                [(cut,), (cut,), ()] if failed else [()] * 3
            )
            assert all(m.residual == 0.0 for m in mixed.values())
            if failed:
                assert mixed[0].notes[0].startswith("edge 0-1 was dropped: ")


def test_a_server_that_waits_for_a_third_is_waited_for(tmp_path: Path) -> None:
    """The ends of a cut link are late for unit 2, which does not give them up."""
    cut = (0, 1)
    local = LocalMixer(TRIANGLE, cut={2: [cut], 3: [cut]})
    with Hosts(tmp_path, 3, [cut]) as hosts, Mixers(hosts, TRIANGLE, DIM, SHORT) as mixers:
        sent = {round_: outgoing(round_, TRIANGLE) for round_ in (1, 2, 3, 4)}
        cutting = threading.Barrier(3)

        def play(unit: int) -> list[Mixed]:
            """Play round after round, as a server does: nothing but the edges keeps it in step."""
            mixed = []
            for round_ in sent:
                mixed.append(mixers.all[unit].mix(round_, split(sent[round_])[unit]))
                if round_ == 1 and cutting.wait() == 0:
                    hosts.cut(cut)
                if round_ == 1:
                    cutting.wait()
                if round_ == 3 and unit == 0:
                    hosts.mend(cut)
                if unit == 1:
                    time.sleep(0.2)
            return mixed

        played = at_once([lambda unit=unit: play(unit) for unit in range(3)])
        for index, round_ in enumerate(sent):
            mixed = {unit: played[unit][index] for unit in range(3)}
            assert rows(mixed).tobytes() == local.mix(round_, sent[round_]).models.tobytes()


@pytest.mark.parametrize("way", [("0", "1"), ("1", "0")], ids=["leader", "follower"])
def test_a_link_cut_in_one_direction_is_dropped_by_both(
    tmp_path: Path, way: tuple[str, str]
) -> None:
    with Hosts(tmp_path, 2, [(0, 1)]) as hosts:
        weights = metropolis([(0, 1)], 2)
        with Mixers(hosts, weights, DIM, SHORT) as mixers:
            hosts.proxies[way].cut()
            sent = outgoing(1, weights)
            mixed = mixers.mix(1, split(sent))
            assert all(m.dropped == ((0, 1),) for m in mixed.values())
            assert rows(mixed).tobytes() == sent.models.tobytes()


def test_an_edge_in_doubt_is_made_good_when_the_other_end_says_that_it_counted(
    tmp_path: Path,
) -> None:
    """The follower counted the edge and its answer never came: one flow is missing for a round."""
    lost = {"now": False}

    def fate(path: str) -> str:
        return "answer" if path == "/commit" and lost["now"] else "whole"

    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, TRIANGLE, DIM, SHORT) as mixers:
        LossyLink(mixers.all[0].peers, "2", fate)
        debt = np.zeros(DIM)
        for round_ in (1, 2, 3):
            lost["now"] = round_ == 2
            sent = outgoing(round_, TRIANGLE)
            mixed = mixers.mix(round_, split(sent))
            off = rows(mixed).sum(axis=0) - sent.models.sum(axis=0)
            debt += off
            if round_ == 2:
                v = {m: sent.message(m, 9) for m in (0, 2)}
                # The sum lacks exactly what unit 0 would have taken over from unit 2.
                np.testing.assert_allclose(off, -TRIANGLE[0, 2] * (v[2] - v[0]), atol=1e-14)
                assert math.isnan(mixed[0].residual)
                assert mixed[0].dropped == ((0, 2),)
                assert "edge 0-2 is in doubt (answer lost)" in mixed[0].notes[0]
                assert mixed[2].dropped == ()
            elif round_ == 3:
                assert mixed[0].notes == (
                    "edge 0-2 of round 2 counted at unit 2: counted here now as well",
                )
                assert mixed[0].residual == 0.0
                assert np.abs(off).max() > 0.1
        np.testing.assert_allclose(debt, 0.0, atol=1e-14)


def test_an_edge_in_doubt_that_did_not_count_costs_nothing(tmp_path: Path) -> None:
    lost = {"now": True}

    def fate(path: str) -> str:
        return "request" if path == "/commit" and lost["now"] else "whole"

    weights = metropolis([(0, 1)], 2)
    with Hosts(tmp_path, 2) as hosts, Mixers(hosts, weights, DIM, SHORT) as mixers:
        LossyLink(mixers.all[0].peers, "1", fate)
        for round_ in (1, 2):
            sent = outgoing(round_, weights)
            mixed = mixers.mix(round_, split(sent))
            lost["now"] = False
            np.testing.assert_allclose(
                rows(mixed).sum(axis=0), sent.models.sum(axis=0), rtol=0, atol=1e-14
            )
        assert mixed[0].notes == ("edge 0-1 of round 1 was dropped at both ends",)


def test_doubt_to_the_end_is_named_with_its_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = metropolis([(0, 1)], 2)
    with Hosts(tmp_path, 2) as hosts:
        with Mixers(hosts, weights, DIM, SHORT) as mixers:
            LossyLink(mixers.all[0].peers, "1", lambda p: "answer" if p == "/commit" else "whole")
            sent = outgoing(1, weights)
            mixed = mixers.mix(1, split(sent))
            off = rows(mixed).sum(axis=0) - sent.models.sum(axis=0)
        size = f"the sum is off by {np.linalg.norm(off):.3g}"
        assert [r.message for r in caplog.records if size in r.message]


def test_messages_lost_at_random_leave_no_noise_behind(tmp_path: Path) -> None:
    """Whatever is lost, once a round goes through the sum is what it would have been."""
    rng = np.random.default_rng(11)
    fates: dict[str, int] = {"request": 0, "answer": 0, "whole": 0}
    share = {"lost": 0.45}

    def fate(path: str) -> str:
        chosen = "whole"
        if rng.random() < share["lost"]:
            chosen = "answer" if rng.random() < 0.6 else "request"
        fates[chosen] += 1
        return chosen

    debt = np.zeros(DIM)
    doubts = drops = last = 0
    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, TRIANGLE, DIM, 0.25) as mixers:
        for mixer in mixers.all:
            for name in list(mixer.peers._links):
                LossyLink(mixer.peers, name, fate)
        # When a message is sent again depends on the clock, and with it what becomes of the next:
        # rounds are played until each fate was met, and two more settle what is open.
        for round_ in range(1, 200):
            if not last and doubts and drops and min(fates.values()) > 20:
                share["lost"] = 0.0
                last = round_ + 1
                for mixer in mixers.all:
                    object.__setattr__(mixer.peers.settings, "timeout", 5.0)
            sent = outgoing(round_, TRIANGLE)
            mixed = mixers.mix(round_, split(sent))
            debt += rows(mixed).sum(axis=0) - sent.models.sum(axis=0)
            doubts += sum("is in doubt" in note for m in mixed.values() for note in m.notes)
            drops += sum("was dropped: " in note for m in mixed.values() for note in m.notes)
            if round_ == last:
                break
        assert all(not mixer._past.doubtful for mixer in mixers.all)
    assert last
    np.testing.assert_allclose(debt, 0.0, atol=1e-13)


def restarted(mixers: Mixers, unit: int) -> NetworkMixer:
    """End a unit's server and start another in its place."""
    mixers.all[unit].close()
    mixers.all[unit] = mixers.make(str(unit))
    mixers.all[unit].start(mixers.shape, 5.0, resumed=True)
    return mixers.all[unit]


def test_a_round_that_only_the_others_remember_is_taken_back(tmp_path: Path) -> None:
    """Unit 1 falls back to its state before round 2, which the others have mixed with it."""
    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, TRIANGLE, DIM, 2.0) as mixers:
        first = outgoing(1, TRIANGLE)
        mixers.mix(1, split(first))
        second = outgoing(2, TRIANGLE)
        before = mixers.mix(2, split(second))
        restarted(mixers, 1)
        again = outgoing(2, TRIANGLE, seed=8)
        alone = mixers.mix(2, {1: split(again)[1]})
        # Nobody can use its vector of round 2 any more, so nobody is sent it.
        assert alone[1].models[0].tobytes() == again.models[1].tobytes()
        assert alone[1].dropped == ((0, 1), (1, 2))
        third = outgoing(3, TRIANGLE)
        after = mixers.mix(3, split(third))
        for unit in (0, 2):
            (note,) = after[unit].notes
            assert note == (
                f"edge {'0-1' if unit == 0 else '1-2'} of round 2 no longer counts at unit 1, "
                "which was started again: taken back here"
            )
        sums = rows(after).sum(axis=0) - third.models.sum(axis=0)
        sums += before[0].models[0] + before[2].models[0] + alone[1].models[0]
        expected = second.models[0] + second.models[2] + again.models[1]
        np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-14)


def test_a_server_that_fell_behind_plays_alone_until_it_meets_the_others(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, TRIANGLE, DIM, SHORT) as mixers:
        mixers.mix(1, split(outgoing(1, TRIANGLE)))
        mixers.all[1].close()
        for round_ in (2, 3):
            parts = split(outgoing(round_, TRIANGLE))
            mixed = mixers.mix(round_, {unit: parts[unit] for unit in (0, 2)})
            assert mixed[0].dropped == ((0, 1),)
            assert mixed[2].dropped == ((1, 2),)
        behind = mixers.make("1")
        mixers.all[1] = behind
        behind.start(mixers.shape, 5.0, resumed=True)
        for round_ in (2, 3):
            sent = outgoing(round_, TRIANGLE)
            mixed = mixers.mix(round_, {1: split(sent)[1]})
            assert mixed[1].models[0].tobytes() == sent.models[1].tobytes()
        sent = outgoing(4, TRIANGLE)
        mixed = mixers.mix(4, split(sent))
        assert all(m.dropped == () for m in mixed.values())
        assert rows(mixed).tobytes() == LocalMixer(TRIANGLE).mix(4, sent).models.tobytes()


def test_servers_that_differ_in_graph_or_settings_do_not_begin(tmp_path: Path) -> None:
    weights = metropolis([(0, 1)], 2)
    with Hosts(tmp_path, 2) as hosts:
        settings = hosts.settings("0")
        one = NetworkMixer(weights, settings, {"perturbation": "none"})
        lazy = (weights + np.eye(2)) / 2
        two = NetworkMixer(lazy, hosts.settings("1"), {"perturbation": "none"})
        try:
            with pytest.raises(ConfigError, match="of unit 1's server differ"):
                at_once([lambda: one.start(SHAPE, 5.0), lambda: two.start(SHAPE, 5.0)])
        finally:
            at_once([one.close, two.close])


def test_a_server_names_the_units_it_waited_for_in_vain(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3) as hosts:
        mixer = NetworkMixer(TRIANGLE, hosts.settings("0"), {})
        try:
            with pytest.raises(RunError, match=r"waited 0.5 s .* missing: unit 1 .*; unit 2 "):
                mixer.start(SHAPE, 0.5)
        finally:
            mixer.close()


@pytest.mark.parametrize("unit", ["3", "ward-b"])
def test_a_unit_that_is_not_in_the_graph_is_refused(tmp_path: Path, unit: str) -> None:
    with Hosts(tmp_path, 3) as hosts:
        settings = hosts.settings("0")
        object.__setattr__(settings, "unit", unit)
        with pytest.raises(ConfigError, match=r"the graph has units 0 \.\.\. 2"):
            NetworkMixer(TRIANGLE, settings, {})


def test_a_unit_that_is_left_out_costs_nobody_its_timeout(tmp_path: Path) -> None:
    """Unit 1 is away for two rounds, which its neighbours were told; then it is back."""
    cut = [(0, 1), (1, 2)]
    local = LocalMixer(TRIANGLE, cut={2: cut, 3: cut})
    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, TRIANGLE, DIM, 3600.0) as mixers:
        for round_ in (1, 2, 3, 4):
            away = round_ in (2, 3)
            here = (0, 2) if away else (0, 1, 2)
            for unit in here:
                mixers.all[unit].leave_out(frozenset("1" if away else ""))
            sent = outgoing(round_, TRIANGLE)
            parts = split(sent)
            played = at_once([partial(mixers.all[unit].mix, round_, parts[unit]) for unit in here])
            expected = local.mix(round_, sent).models
            for unit, mixed in zip(here, played, strict=True):
                assert mixed.models[0].tobytes() == expected[unit].tobytes()
                assert mixed.residual == 0.0
                if away:
                    assert mixed.dropped == ((0, 1),) if unit == 0 else ((1, 2),)
                    assert mixed.notes[0].endswith("was dropped: excluded by the operator")


def test_a_server_that_is_gone_is_waited_for_once_and_joins_the_present_round(
    tmp_path: Path,
) -> None:
    """Unit 1 is away in rounds 2 to 4, and its next round of its own would be round 2."""
    timeout = 6.0
    local = LocalMixer(TRIANGLE)
    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, TRIANGLE, DIM, timeout) as mixers:
        sent = {round_: outgoing(round_, TRIANGLE) for round_ in range(1, 7)}
        mixers.mix(1, split(sent[1]))
        mixers.all[1].close()
        seconds = []
        for round_ in (2, 3, 4):
            begun = time.monotonic()
            here = split(sent[round_])
            mixed = mixers.mix(round_, {unit: here[unit] for unit in (0, 2)})
            seconds.append(time.monotonic() - begun)
            assert mixed[0].dropped == ((0, 1),)
            assert mixed[2].dropped == ((1, 2),)
        assert seconds[0] >= timeout
        assert seconds[1] + seconds[2] < timeout
        mixers.all[1] = mixers.make("1")
        mixers.all[1].start(mixers.shape, 20.0, resumed=True)
        assert mixers.all[1].present_round(2, 100) == 5
        assert mixers.all[1].present_round(2, 3) == 2  # one is made up for
        for round_ in (5, 6):
            begun = time.monotonic()
            mixed = mixers.mix(round_, split(sent[round_]))
            assert time.monotonic() - begun < timeout
            assert all(one.dropped == () for one in mixed.values())
            assert rows(mixed).tobytes() == local.mix(round_, sent[round_]).models.tobytes()
            assert mixers.all[1].present_round(round_ + 1, 100) == round_ + 1


def test_rounds_that_a_server_skips_no_longer_count_at_its_neighbours(tmp_path: Path) -> None:
    """Unit 1 is resumed from before round 2, in which its edges had counted."""
    with Hosts(tmp_path, 3) as hosts, Mixers(hosts, TRIANGLE, DIM, SHORT) as mixers:
        for round_ in (1, 2):
            mixers.mix(round_, split(outgoing(round_, TRIANGLE)))
        mixers.all[1].close()
        here = split(outgoing(3, TRIANGLE))
        mixers.mix(3, {unit: here[unit] for unit in (0, 2)})
        mixers.all[1] = mixers.make("1")
        mixers.all[1].start(mixers.shape, 20.0, resumed=True)
        assert mixers.all[1].present_round(2, 100) == 4
        mixed = mixers.mix(4, split(outgoing(4, TRIANGLE)))
    for unit, edge in ((0, "0-1"), (2, "1-2")):
        line = f"edge {edge} of round 2 no longer counts at unit 1, which was started again"
        assert mixed[unit].notes == (f"{line}: taken back here",)
        assert mixed[unit].dropped == ()
