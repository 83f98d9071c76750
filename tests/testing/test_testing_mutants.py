"""A check that cannot fail is worthless: broken forms of an algorithm, each caught by its check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass, replace
from typing import Any

import numpy as np
import pytest

from privet.client_apps import Local
from privet.core import registry
from privet.core.key import Config, setting
from privet.kernel.node_rules import NodeRules
from privet.kernel.programs.gradients import Gradients
from privet.problems.linear import ClippedSums
from privet.rounds import uploads
from privet.server_apps import read_config
from privet.sim.inline import app_of
from privet.strategies import SearchAxis
from privet.testing import Check, CheckFailed, checks, logistic_federation, sharded
from privet.testing.grids import WatchedGrid
from privet.testing.subject import ENGINES
from support.outside import installed
from support.paths import ROOT

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """What is broken, and the checks that must notice."""

    breaks: Callable[[Patch], None]
    caught_by: tuple[str, ...]
    says: str = ""


MUTANTS: dict[str, Mutant] = {}


def mutant(*caught_by: str, says: str = "") -> Callable[[Callable[[Patch], None]], None]:
    """Register a function that breaks Scaffnew."""

    def register(breaks: Callable[[Patch], None]) -> None:
        MUTANTS[breaks.__name__] = Mutant(breaks, caught_by, says)

    return register


@pytest.fixture(scope="module", autouse=True)
def scaffnew() -> Iterator[None]:
    with installed(ROOT / "tests" / "foreign" / "scaffnew"):
        yield


def agent() -> Any:
    return registry.algorithm("scaffnew").load_agent()


def strategy() -> Any:
    return registry.algorithm("scaffnew").load_strategy()


def server() -> Any:
    return type(strategy()().half)


def wrapped(patch: Patch, kind: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a method by ``change(original, self, *arguments)``."""
    original = getattr(kind, name)
    patch.setattr(kind, name, lambda self, *given, **named: change(original, self, *given, **named))


# ------------------------------------------------------------------ names, settings, arguments


@mutant("halves_agree_on_name_and_version", says="'scaffold'")
def agent_half_of_another_name(patch: Patch) -> None:
    patch.setattr(agent(), "name", "scaffold")


@mutant("halves_agree_on_name_and_version", says="version 2, this run scaffnew version 1")
def agent_half_of_another_version(patch: Patch) -> None:
    patch.setattr(server(), "version", agent().version)  # of its own, not the agent half's
    patch.setattr(agent(), "version", 2)


@mutant("noise_has_its_key", says="and no noise_key")
def private_form_that_no_check_asks_for(patch: Patch) -> None:
    patch.setattr(agent(), "noise_key", "")


@mutant("what_is_searched_is_there", says="search names 'step_size', which is no key of a run")
def search_for_an_attribute(patch: Patch) -> None:
    patch.setattr(strategy(), "search", (SearchAxis("step_size", 0.1, 1.0),))


def sending(patch: Patch, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let the server half send what ``change`` makes of its settings."""
    wrapped(patch, server(), "settings", lambda original, half: change(dict(original(half))))


@mutant("every_number_reaches_the_agent_half", says="gamma = 0.05 in the run config is 0.1")
def step_size_that_is_not_sent(patch: Patch) -> None:
    sending(patch, lambda settings: settings | {"gamma": 0.1})


@mutant("settings_make_equal_agent_halves", says="not equal")
def agent_half_that_equals_itself_only(patch: Patch) -> None:
    patch.setattr(agent(), "__eq__", lambda self, other: self is other)


def configured(patch: Patch, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Let the Strategy be made of a run config and options that ``change`` has changed."""
    made = strategy().from_config.__func__

    def from_config(cls: Any, config: Any, **options: Any) -> Any:
        config = Config(config)
        change(config, options)
        return made(cls, config, **options)

    patch.setattr(strategy(), "from_config", classmethod(from_config))


@mutant("unknown_arguments_are_refused", says="takes an argument that it does not have")
def misspelt_arguments_are_swallowed(patch: Patch) -> None:
    configured(patch, lambda config, options: options.pop("no_such_argument", None))


def declaring(patch: Patch, gamma: Any) -> None:
    """Let the algorithm declare its key gamma like this; of two of a name the first counts."""
    own = make_dataclass("Own", [("gamma", float, gamma)], frozen=True)
    patch.setattr(strategy(), "settings", (own, *strategy().settings))


@mutant("keys_are_documented", says="key 'gamma' has no doc")
def key_without_a_text(patch: Patch) -> None:
    declaring(patch, setting(0.1, " "))


@mutant("keys_are_documented", says="key 'gamma' refuses its own default")
def default_out_of_range(patch: Patch) -> None:
    declaring(patch, setting(0.1, "step size of a local step", low=1.0))


# ------------------------------------------------------------------ runs in which nothing is wrong


def sloping(patch: Patch, change: Callable[..., Any]) -> None:
    """Let the local steps go by ``change(noise, problem, gradient)`` in place of the gradient."""
    original = Gradients.oracle

    def oracle(self: Gradients, problem: Any, streams: Any, noise: Any, *rest: Any) -> Any:
        return change(noise, problem, original(self, problem, streams, noise, *rest))

    patch.setattr(Gradients, "oracle", oracle)


@mutant("run_is_finite_and_makes_progress", says="the mean gradient's norm went from")
def steps_uphill(patch: Patch) -> None:
    sloping(patch, lambda noise, problem, gradient: lambda w: -gradient(w))


@mutant("same_seed_gives_the_same_bits", says=" differs by ")
def chance_that_no_seed_names(patch: Patch) -> None:
    def fold(original: Any, half: Any, state: Any, uploads: Any, turn: Any) -> Any:
        state = original(half, state, uploads, turn)
        state.x = state.x + 1e-12 * np.random.default_rng().standard_normal(state.x.shape)
        return state

    wrapped(patch, server(), "fold", fold)


@mutant("agents_share_nothing", "order_of_nodes_changes_nothing")
def agent_half_that_writes_into_the_broadcast(patch: Patch) -> None:
    def local_update(original: Any, half: Any, state: Any, broadcast: Any, *rest: Any) -> Local:
        broadcast["x"] = 1.01 * broadcast["x"]
        done: Local = original(half, state, broadcast, *rest)
        return done

    wrapped(patch, agent(), "local_update", local_update)


@mutant("same_seed_gives_the_same_bits", says="read-only")
def agent_half_that_writes_into_an_array_of_the_message(patch: Patch) -> None:
    def local_update(original: Any, half: Any, state: Any, broadcast: Any, *rest: Any) -> Local:
        broadcast["x"] *= 1.01
        done: Local = original(half, state, broadcast, *rest)
        return done

    wrapped(patch, agent(), "local_update", local_update)


@mutant("data_are_not_written_to", says="the agents' data")
def agent_half_that_writes_into_the_data(patch: Patch) -> None:
    """Past what it was given, through an attribute that is not its own."""

    def local_update(
        original: Any, half: Any, state: Any, broadcast: Any, records: Any, streams: Any
    ) -> Local:
        features = records._problem.features
        features.flags.writeable = True
        features *= 1.01
        done: Local = original(half, state, broadcast, records, streams)
        return done

    wrapped(patch, agent(), "local_update", local_update)


@mutant("resumed_run_is_the_uninterrupted_one", says="do not hold the same state")
def checkpoint_that_forgets(patch: Patch) -> None:
    def dump(original: Any, half: Any, state: Any, *changed: Any) -> Any:
        return {**original(half, state, *changed), "end": np.zeros_like(state.end)}

    wrapped(patch, server(), "dump", dump)


@mutant("rounds_leave_the_rows_of_absent_agents", says="changes rows of h of agents without")
def round_that_moves_everybody(patch: Patch) -> None:
    def fold(original: Any, half: Any, state: Any, *arguments: Any) -> Any:
        done = original(half, state, *arguments)
        done.h[:] *= 1.5
        return done

    wrapped(patch, server(), "fold", fold)


@mutant("run_goes_on_when_all_nodes_restart", "lost_state_is_made_good")
def agent_that_is_sent_another_state(patch: Patch) -> None:
    def recovery_of(original: Any, half: Any, state: Any, *arguments: Any) -> Any:
        return {"h": np.zeros_like(state.x), "end": state.x}

    wrapped(patch, server(), "recovery_of", recovery_of)


@mutant("run_goes_on_when_all_nodes_restart", "lost_state_is_made_good")
def server_that_sends_no_state_and_remembers_one(patch: Patch) -> None:
    wrapped(patch, server(), "recovery_of", lambda original, half, *arguments: None)


# ------------------------------------------------------------------ what agents do wrong


@mutant("absent_agents_are_not_waited_for", says="do not hold the same state")
def absent_agents_are_moved_too(patch: Patch) -> None:
    def fold(original: Any, half: Any, state: Any, uploads: Any, turn: Any) -> Any:
        state = original(half, state, uploads, turn)
        state.h += 0.1 * (len(uploads) < len(state.h))
        return state

    wrapped(patch, server(), "fold", fold)


@mutant("lost_reply_is_an_absence", says="a lost reply")
def agent_half_that_keeps_its_state_in_itself(patch: Patch) -> None:
    kept: dict[str, Any] = {}

    def local_update(
        original: Any, half: Any, state: Any, broadcast: Any, records: Any, streams: Any
    ) -> Local:
        held = kept.get(streams.agent, state) if streams.round > 1 else state
        done: Local = original(half, held, broadcast, records, streams)
        kept[streams.agent] = done.state
        return done

    wrapped(patch, agent(), "local_update", local_update)


def accepting(patch: Patch, change: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
    """Let the server half take what ``change(state, upload)`` makes of uploads."""

    def accept(original: Any, half: Any, state: Any, block: Any) -> Any:
        return original(half, state, block._replace(upload=change(state, dict(block.upload))))

    wrapped(patch, server(), "accept", accept)


@mutant("reply_of_nan_is_dropped", "reply_of_infinity_is_dropped")
def server_that_takes_any_number(patch: Patch) -> None:
    patch.setattr(uploads, "require_finite", lambda array: None)


@mutant("reply_of_wrong_shape_is_dropped", says="a longer reply")
def server_that_cuts_vectors(patch: Patch) -> None:
    accepting(patch, lambda state, upload: {"end": upload["end"][:, : state.x.size]})


@mutant("reply_without_arrays_is_dropped", says="a reply without arrays")
def server_that_fills_in_what_is_missing(patch: Patch) -> None:
    def accept(original: Any, half: Any, state: Any, block: Any) -> Any:
        if block.upload:
            return original(half, state, block)
        filled = original(half, state, block._replace(upload={"end": state.x[None]}))
        state.h[block.positions] *= 0.5
        return filled

    wrapped(patch, server(), "accept", accept)


@mutant("reply_of_wrong_digest_is_dropped", says="a reply with another digest")
def server_that_folds_what_it_has_not_accepted(patch: Patch) -> None:
    def accept(original: Any, half: Any, state: Any, block: Any) -> Any:
        accepted, agreed = original(half, state, block)
        state.h[block.positions] = accepted.state["h"]
        return accepted, agreed

    wrapped(patch, server(), "accept", accept)


@mutant("secure_sum_is_the_sum_in_clear", says="secure-sum = true is ignored")
def secure_sum_that_is_ignored(patch: Patch) -> None:
    configured(patch, lambda config, options: config.update({"secure-sum": False}))


# ------------------------------------------------------------------ what a reply costs


@mutant("limited_node_vetoes_what_is_not_noised", says="sends an un-noised upload")
def nodes_without_a_veto(patch: Patch) -> None:
    patch.setattr(NodeRules, "screen", lambda self, **asked: None)
    patch.setattr(NodeRules, "charge", lambda self, *of, **more: None)


@mutant("charge_is_what_is_drawn", says="do not make it private")
def noise_that_is_never_meant(patch: Patch) -> None:
    patch.setattr(agent(), "private", False)


def releasing(patch: Patch, **changes: Callable[[Any], Any]) -> None:
    """Let the agent half charge for something else where it charges."""

    def release(original: Any, half: Any, facts: Any, round_: int) -> Any:
        made = original(half, facts, round_)
        if made.mechanism == "none":
            return made
        return replace(made, **{name: change(made) for name, change in changes.items()})

    wrapped(patch, agent(), "release", release)


@mutant("charge_is_what_is_drawn", says="charged")
def charge_for_one_step_of_many(patch: Patch) -> None:
    releasing(patch, count=lambda made: 1)


@mutant("charge_is_what_is_drawn", says="charged")
def charge_for_half_of_what_a_record_moves(patch: Patch) -> None:
    releasing(patch, sensitivity=lambda made: made.sensitivity / 2)


@mutant("charge_is_what_is_drawn", says="charged")
def upload_that_is_not_noised(patch: Patch) -> None:
    sloping(patch, lambda noise, problem, gradient: problem.gradient)


@mutant("uploads_tell_only_what_was_noised", says="holds more of the data than was noised")
def gradient_that_is_added_after_the_noise(patch: Patch) -> None:
    def beside(noise: Any, problem: Any, gradient: Any) -> Any:
        return lambda w: gradient(w) + 1e-3 * noise.charged * problem.gradient(w)

    sloping(patch, beside)


@mutant("a_record_moves_no_more_than_is_charged", says="was charged")
def gradient_at_a_point_made_of_the_data(patch: Patch) -> None:
    def elsewhere(noise: Any, problem: Any, gradient: Any) -> Any:
        return lambda w: gradient(w - 0.5 * noise.charged * problem.gradient(w))

    sloping(patch, elsewhere)


@mutant("an_agent_moves_no_more_than_is_charged", says="was charged")
def sum_that_is_longer_than_its_clips(patch: Patch) -> None:
    whole = ClippedSums.clipped_term

    def longer(problem: Any, *rest: Any) -> Any:
        value, slope = whole(problem, *rest)
        return 10.0 * value, slope

    patch.setattr(ClippedSums, "clipped_term", longer)


@mutant("noise_is_the_only_chance", says="with the same noise")
def noise_from_elsewhere(patch: Patch) -> None:
    def shaken(noise: Any, problem: Any, gradient: Any) -> Any:
        own = np.random.default_rng()
        return lambda w: gradient(w) + 1e-6 * own.standard_normal(w.shape) * noise.charged

    sloping(patch, shaken)


@mutant("noise_is_the_only_chance", says="other noise gives the same model")
def noise_that_is_drawn_and_thrown_away(patch: Patch) -> None:
    def clear(noise: Any, problem: Any, gradient: Any) -> Any:
        return lambda w: (gradient(w), problem.gradient(w))[1]

    sloping(patch, clear)


@mutant("ledger_says_what_the_history_says", says="3 rounds are [0, 0, 0, 0, 0, 0] lines")
def nodes_that_write_no_ledger(patch: Patch) -> None:
    patch.setattr(NodeRules, "charge", lambda self, *of, **more: None)


@mutant("target_epsilon_is_met_and_not_passed")
def noise_that_is_found_and_not_sent(patch: Patch) -> None:
    sending(patch, lambda settings: settings | {"noise-scale": 1.0})


@mutant("seeded_noise_is_marked_not_private")
def seed_of_the_noise_that_is_not_sent(patch: Patch) -> None:
    sending(patch, lambda settings: settings | {"noise-seed": -1})


# ------------------------------------------------------------------ the mutants meet the checks


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_by_its_check(name: str, monkeypatch: Patch) -> None:
    broken = MUTANTS[name]
    broken.breaks(monkeypatch)
    by_name = {check.name: check for check in checks("scaffnew")}
    for check in broken.caught_by:
        with pytest.raises(CheckFailed) as caught:
            by_name[check]()
        text = str(caught.value)
        assert text.startswith(f"scaffnew-{check}: ")
        assert broken.says in text
        assert "\n" not in text


def check_of(algorithm: str, name: str, **options: Any) -> Check:
    (found,) = (check for check in checks(algorithm, **options) if check.name == name)
    return found


def test_secure_sum_that_is_not_the_sum_is_caught(monkeypatch: Patch) -> None:
    config = read_config({"secure-sum": True, "algorithm": "fed-plt"})
    half = registry.algorithm("fed-plt").load_strategy().from_config(config).half

    def fold_sums(original: Any, half: Any, state: Any, sums: Any, turn: Any) -> Any:
        if not half.masked:
            return original(half, state, sums, turn)
        arrays = {name: 1.000001 * array for name, array in sums.arrays.items()}
        more = uploads.MaskedTotals(arrays, sums.positions, {"y": state.y})
        return original(half, state, more, turn)

    wrapped(monkeypatch, type(half), "fold_sums", fold_sums)
    with pytest.raises(CheckFailed, match=r"the model of the secure sum is .* away from that in"):
        check_of("fed-plt", "secure_sum_is_the_sum_in_clear")()


def test_engine_that_computes_something_else_is_caught(monkeypatch: Patch) -> None:
    other = logistic_federation(seed=1)
    monkeypatch.setitem(
        ENGINES, "cohort", lambda subject: ENGINES["inline"](replace(subject, problems=other))
    )
    with pytest.raises(CheckFailed, match="the engine 'cohort': model 'last' differs by"):
        check_of("led", "engines_agree_to_the_bit", engines=("inline", "cohort"))()


def test_ray_that_computes_something_else_is_caught_by_every_check(monkeypatch: Patch) -> None:
    other = app_of("led", logistic_federation(seed=1))

    def grid(factory: Any, *arguments: Any, **options: Any) -> WatchedGrid:
        return WatchedGrid(other, *arguments, **options)

    monkeypatch.setattr(sharded, "WatchedRay", grid)
    for name in ("run_is_finite_and_makes_progress", "lost_state_is_made_good"):
        with pytest.raises(CheckFailed, match="the ray engine: model 'last' differs by"):
            check_of("led", name, engines=("inline", "ray"))()


def test_limit_that_a_nodes_own_steps_move_is_caught(monkeypatch: Patch) -> None:
    """An agent of Fed-PLT computes what both sides agree on from a key of its own."""

    def conclude(original: Any, half: Any, *arguments: Any, **options: Any) -> Any:
        local = original(half, *arguments, **options)
        agreed = tuple(array * (half.local_epochs / 10) for array in local.agreed)
        return local._replace(agreed=agreed)

    wrapped(monkeypatch, registry.algorithm("fed-plt").load_agent(), "conclude", conclude)
    check_of("fed-plt", "run_is_finite_and_makes_progress")()
    with pytest.raises(CheckFailed, match=r"local-epochs=7 step-size=0\.05 at one node"):
        check_of("fed-plt", "steps_of_a_nodes_own_move_no_limit")()


def test_code_that_one_side_reads_otherwise_is_caught(monkeypatch: Patch) -> None:
    """The server of LED decodes differences to what the agent did not take them to."""

    half = registry.algorithm("led").load_strategy()().half
    name = "coded_uploads_are_shorter_and_agreed_upon"

    def decoded(original: Any, half: Any, state: Any, position: int, sent: Any, upload: Any) -> Any:
        return original(half, state, position, {**sent, "x": 1.001 * sent["x"]}, upload)

    wrapped(monkeypatch, type(half), "decoded", decoded)
    with pytest.raises(CheckFailed, match="digest differs"):
        check_of("led", name)()


def test_step_of_a_code_that_is_made_of_the_data_is_caught(monkeypatch: Patch) -> None:
    """An agent of SCAFFOLD codes its noised upload in units of an un-noised gradient."""
    half, seen = registry.algorithm("scaffold").load_agent(), []

    def local_update(
        original: Any, half: Any, state: Any, broadcast: Any, records: Any, streams: Any
    ) -> Any:
        seen.append(float(np.linalg.norm(records._problem.gradient(broadcast["x"]))))
        return original(half, state, broadcast, records, streams)

    def coder(original: Any, half: Any, *arguments: Any) -> Any:
        made = original(half, *arguments)
        return made and made._replace(step=seen[-1] / 100)

    wrapped(monkeypatch, half, "local_update", local_update)
    wrapped(monkeypatch, half, "coder", coder)
    check_of("scaffold", "uploads_tell_only_what_was_noised")()
    with pytest.raises(CheckFailed, match="'u' of the upload"):
        check_of("scaffold", "codes_tell_only_what_was_noised")()


UNBROKEN = {"disconnected_agent_is_an_absent_one", "reply_of_wrong_dtype_is_dropped"}
"""Checks that no mutant is for: what they promise is kept above the halves, or by the digest."""


def test_every_check_catches_a_mutant() -> None:
    caught = {check for broken in MUTANTS.values() for check in broken.caught_by}
    caught.add("steps_of_a_nodes_own_move_no_limit")  # of LED, whose agents have such keys
    caught.add("engines_agree_to_the_bit")  # the broken engine above
    caught.add("coded_uploads_are_shorter_and_agreed_upon")  # the other reference above
    caught.add("codes_tell_only_what_was_noised")  # of SCAFFOLD, whose uploads may be coded
    assert {check.name for check in checks("scaffnew")} - caught == UNBROKEN
