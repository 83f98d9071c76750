"""What server halves derive, and what the constructors of all strategies have in common."""

from __future__ import annotations

import inspect
import math
import pydoc
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from privet import strategies
from privet.agents.terms import PrivacyTerms
from privet.client_apps.fed_plt import Agent
from privet.core import ConfigError, RunError, UploadError, algorithms
from privet.core.key import Key, keys_of
from privet.kernel import stream
from privet.rounds.flower.configured import shared_defaults
from privet.rounds.flower.options import FlowerOptions
from privet.rounds.half import UNSAVED, HalfState, ServerHalf, Turn, Vector
from privet.rounds.keep.checkpoint import load, save
from privet.rounds.options import RunOptions
from privet.rounds.shared_regularizer import RegularizerSettings
from privet.server_apps import read_config
from privet.sim.engine import InlineGrid
from privet.strategies import (
    LED,
    All,
    DPFedSGD,
    FedDyn,
    FedPD,
    FedPDM,
    FedPLT,
    FedSplit,
    Fraction,
    PrimalDualStrategy,
    PrivetResult,
    RunArguments,
    Scaffold,
)
from privet.strategies.gfl.strategy import PeerKeys
from privet.strategies.rivals.base import RivalStrategy
from support.federations import app_of, logistic_agents, zeros
from support.paths import ROOT
from support.server_rounds import accept

KINDS: list[type[PrimalDualStrategy]] = [entry.load_strategy() for entry in algorithms().values()]


@dataclass(slots=True)
class State(HalfState):
    """A model, a table and a number, and what follows from them."""

    x: Vector
    table: Vector
    count: int = 0
    total: Vector = field(init=False, metadata=UNSAVED)


@dataclass(frozen=True)
class Half(ServerHalf[State]):
    """What a half has to write at least."""

    state = State

    agent: Agent = field(default_factory=Agent)

    def rows(self, start: Vector) -> dict[str, Vector]:
        """Return twice the start."""
        return {"table": 2 * start}

    def initialise(self, start: Vector, count: int) -> State:
        """Return the state before round 1."""
        return self.completed(State(start, **self.tables(start, count)))

    def completed(self, state: State) -> State:
        """Return the state with the sum of the rows."""
        state.total = state.table.sum(axis=0)
        return state

    def broadcast(self, state: State, turn: Turn) -> tuple[State, dict[str, Vector]]:
        """Return x."""
        return state, {"x": state.x}


def test_tables_follow_the_agents() -> None:
    half, start = Half(), np.array([1.0, -3.0])
    state = half.initialise(start, 2)
    assert state.table.tolist() == [[2, -6], [2, -6]]
    state.table[1] = [5, 5]
    assert half.recovery_of(state, 1, start) == {"table": pytest.approx([5, 5])}
    state = half.admit(state, 1, start)
    assert state.table.tolist() == [[2, -6], [2, -6], [5, 5]]
    assert state.total.tolist() == [9, -7]
    state = half.renew(state, 2, start)
    assert state.total.tolist() == [6, -18]
    assert half.models(state)["last"] is state.x
    assert half.per_agent_broadcast(state, 0, Turn(1)) == {}


def test_a_state_survives_its_arrays_and_no_other_does() -> None:
    half = Half()
    state = half.initialise(np.array([1.0, -3.0], np.float32), 3)
    state.count, state.residual = 7, 0.25
    arrays = half.dump(state)
    assert set(arrays) == {"x", "table", "count", "residual"}
    again = half.load(arrays)
    assert (again.count, type(again.count), half.residual(again)) == (7, int, 0.25)
    assert again.table.dtype == np.float32
    assert np.array_equal(again.total, state.total)
    again.table[0] = 0  # what is loaded may be written into
    assert state.table[0, 0] == 2
    del arrays["count"]
    with pytest.raises(
        RunError, match="resume: the checkpoint's state has residual, table, x, fed"
    ):
        half.load(arrays)


def test_rows_of_zeros_are_not_in_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large table; one of which most rows were written is there as it is."""
    monkeypatch.setattr("privet.core.mapped.SPARSE", 1)
    half = Half()
    state = half.initialise(np.zeros(2, np.float32), 9)
    state.table[[2, 7]] = [[1.5, 0], [0, -0.0]]
    arrays = half.dump(state)
    assert arrays["table.places"].tolist() == [9, 2, 7]
    assert arrays["table.rows"].shape == (2, 2)
    again = half.load(arrays)
    assert again.table.tobytes() == state.table.tobytes()
    assert again.table.dtype == np.float32
    again.table[0] = 1.0
    assert half.load(arrays).table.tobytes() == state.table.tobytes()
    state.table[3:6] = 1.0
    assert half.dump(state)["table"] is state.table
    del arrays["table.places"]
    with pytest.raises(RunError, match=r"resume: the checkpoint's state has .*table\.rows"):
        half.load(arrays)


def test_a_checkpoint_of_another_state_is_refused_in_one_line(tmp_path: Path) -> None:
    problems = logistic_agents(2)
    app = app_of(problems)
    path = tmp_path / "checkpoint.npz"
    strategy = FedPLT(num_agents=2, rho=3.0)
    strategy.start(InlineGrid(app, 2), zeros(4), num_rounds=1, checkpoint=path)
    saved = load(path)
    saved.arrays["w"] = saved.arrays.pop("y")
    save(path, saved)
    with pytest.raises(RunError, match=r"resume: .* state has .*, total, w, x, z, fed-plt"):
        FedPLT(num_agents=2, rho=3.0).start(InlineGrid(app, 2), zeros(4), num_rounds=2, resume=path)


def test_a_half_is_told_the_round_and_named_streams() -> None:
    turn = Turn(4, seed=9)
    expected = stream(9, "coin", round_=4).random(3)
    assert np.array_equal(turn.stream("coin").random(3), expected)
    assert not np.array_equal(turn.stream("other").random(3), expected)
    assert not np.array_equal(Turn(5, seed=9).stream("coin").random(3), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_travels_are_the_agents_fields_and_the_terms(kind: type[PrimalDualStrategy]) -> None:
    half: Any = kind.from_config(read_config({"algorithm": kind.algorithm})).half
    assert type(half.agent) is algorithms()[kind.algorithm].load_agent()
    own = {entry.name.replace("_", "-") for entry in fields(half.agent)} - {"secure-sum"}
    terms = set(half.settings()) - own
    assert terms == ({"delta", "noise-seed"} - own if half.noise_key else terms)
    assert type(half.agent).from_settings(half.settings()) == half.agent
    assert not half.masked


def test_terms_travel_with_a_target_where_there_is_one() -> None:
    assert PrivacyTerms().settings() == {"delta": 1e-5, "noise-seed": -1}
    target = PrivacyTerms(1e-6, 3, 2.0).settings()
    assert target == {"delta": 1e-6, "noise-seed": 3, "target-epsilon": 2.0}


def test_step_sizes_are_those_of_the_agents_to_the_bit() -> None:
    for kind in (DPFedSGD, Scaffold):
        half: Any = kind(step_size_base=0.3).half
        assert half.agent.step_size(2921) == 0.3 / np.sqrt(2921)


# ------------------------------------------------------------------ constructors


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_is_named_and_defaults_are_those_of_the_run_config(
    kind: type[PrimalDualStrategy],
) -> None:
    signature = inspect.signature(kind).parameters
    assert not {entry.kind for entry in signature.values()} & {
        inspect.Parameter.VAR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    }
    assert set(signature) == {*kind.arguments(), *RunArguments.__annotations__}
    taken = {name: entry for name, entry in signature.items() if name in kind.arguments()}
    keys = kind.config_keys()
    for name in keys.keys() & taken.keys() - {"h"}:
        assert keys[name].check(taken[name].default) == keys[name].default, name
        if choices := keys[name].choices:  # for editors and type checkers
            annotation = str(taken[name].annotation).replace('"', "'")
            assert annotation == f"Literal{list(map(keys[name].text, choices))}", name
    said = inspect.getdoc(kind.__init__) or ""
    assert all(f"\n{name} : " in said for name in taken)
    assert not any(f"\n{name} : " in said for name in RunArguments.__annotations__)
    assert "`privet.strategies.RunArguments`" in said
    # A key that nobody took would be read and forgotten, where it is to be refused.
    elsewhere = {*RunArguments.__annotations__}
    elsewhere |= set(keys_of(RegularizerSettings)) if "h" in taken else set()
    elsewhere |= set(keys_of(PeerKeys)) if PeerKeys in kind.settings else set()
    assert keys.keys() <= {*taken, *elsewhere}
    by_config = kind.from_config(read_config({"algorithm": kind.algorithm}))
    assert kind().half.settings() == by_config.half.settings()


def test_the_constructors_are_those_of_the_keys() -> None:
    """``make keys`` writes them."""
    keys = runpy.run_path(str(ROOT / "scripts" / "keys.py"))
    for name, module in keys["constructors"]().items():
        assert (ROOT / name).read_text() == module, "run make keys"
    assert (ROOT / keys["ARGUMENTS"]).read_text() == keys["run_arguments"](), "run make keys"


def test_help_shows_the_own_arguments_of_a_strategy_and_those_of_all_once() -> None:
    shown = pydoc.plain(pydoc.render_doc(FedPLT))
    assert "local_epochs : int, default 10\n" in shown
    assert "`privet.strategies.RunArguments` says what each is" in shown
    # The signature has all, with defaults.
    assert "num_agents: \"int | Literal['auto']\" = 'auto'" in shown
    shared = pydoc.plain(pydoc.render_doc(strategies.RunArguments))
    for name, default in shared_defaults().items():
        _, found, rest = shared.partition(f"  {name} : ")
        assert found, name
        line, said, *_ = rest.splitlines()
        written = f'"{default}"' if isinstance(default, str) else repr(default)
        assert line.endswith(f", default {written}"), name
        assert len(said.strip(" |")) > 10, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_gives_the_values_that_a_call_without_arguments_takes(
    kind: type[PrimalDualStrategy],
) -> None:
    strategy = kind()
    defaults = {name: each.default for name, each in inspect.signature(kind).parameters.items()}
    for name, key in keys_of(RunOptions).items():
        assert key.check(defaults[name]) == getattr(strategy.options, name), name
    for each in fields(FlowerOptions):
        assert defaults[each.name] == getattr(strategy.flower, each.name), each.name
    assert defaults["fraction_evaluate"] == strategy.fraction_evaluate
    assert defaults["agent_weights"] == strategy.options.agent_weights
    assert defaults["monitor"] is strategy.monitor is None
    assert defaults["participation"] is None
    assert strategy.participation == All()
    given = {n: v for n, v in defaults.items() if n in RunArguments.__annotations__}
    assert kind(**given).options == strategy.options


def test_a_strategy_of_a_user_shows_the_signature_of_its_own_constructor() -> None:
    class Own(FedPLT):
        def __init__(self, size: int) -> None:
            super().__init__(num_agents=size)

    assert list(inspect.signature(Own).parameters) == ["size"]
    assert Own(3).options.num_agents == 3


def test_type_checkers_check_the_names_and_types_of_shared_arguments(tmp_path: Path) -> None:
    lines = {
        "FedPLT(rho=1.0, num_agents=3, late_replies='drop', fraction_train=0.5)": "",
        "FedPLT(num_agent=3)": "call-arg",
        "FedPLT(num_agents='three')": "arg-type",
        "FedPLT(late_replies='lose')": "arg-type",
        "Scaffold(participation=3)": "arg-type",
    }
    file = tmp_path / "calls.py"
    file.write_text("\n".join(["from privet.strategies import FedPLT, Scaffold", *lines]))
    # As `make types` does, whose cache makes this quick.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", file], capture_output=True, text=True, check=False, cwd=ROOT
    )
    found = dict(re.findall(r"calls\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout))
    wanted = {str(number): code for number, code in enumerate(lines.values(), 2) if code}
    assert found == wanted, done.stdout + done.stderr


def test_a_strategy_without_a_constructor_of_its_own_takes_its_keys_by_name() -> None:
    class Plain(RivalStrategy):
        algorithm = "led"
        settings = LED.settings
        server_half = LED.server_half

    made = Plain(dual_step_size=0.5, local_epochs=3, num_agents=4)
    assert made.half == LED(dual_step_size=0.5, local_epochs=3).half
    assert made.options.num_agents == 4
    with pytest.raises(TypeError, match="Plain takes no 'epochs'; did you mean 'local_epochs'"):
        Plain(epochs=3)
    with pytest.raises(ConfigError, match="local-epochs = 0"):
        Plain(local_epochs=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_a_call_or_of_a_config_is_checked_once(
    kind: type[PrimalDualStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    check = Key.check

    def noted(self: Key, value: Any) -> Any:
        asked.append(self.name)
        return check(self, value)

    config = read_config({"algorithm": kind.algorithm})
    monkeypatch.setattr(Key, "check", noted)
    kind.from_config(config)
    own = {key.name for key in kind.config_keys().values()}
    assert own.isdisjoint(asked) or kind.algorithm == "dp-iadmm"  # whose penalty is made anew
    asked.clear()
    name = next(iter(kind.argument_keys()))
    kind(**{name: kind.arguments()[name]})
    assert asked.count(name.replace("_", "-")) == 1
    with pytest.raises(TypeError, match="from_config takes what read_config returns"):
        kind.from_config(dict(config))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("fed-plt", "lr", "step_size"),
        ("scaffold", "lr", "step_size_base"),
        ("fed-dyn", "step_size", "step_size_base"),
        ("fed-plt", "epochs", "local_epochs"),
        ("fed-pdm", "epochs", "max_local_steps"),
        ("dp-iadmm", "epochs", "local_updates"),
        ("fed-plt", "batch", "batch_size"),
        ("led", "local_epoch", "local_epochs"),
        ("gfl", "num_clients", "num_agents"),
        ("five-gcs", "particpation", "participation"),
        ("fed-dyn", "max_grad_norm", "clip"),
    ],
)
def test_an_argument_that_there_is_not_names_the_one_that_is_meant(
    kind: str, name: str, meant: str
) -> None:
    strategy = algorithms()[kind].load_strategy()
    with pytest.raises(TypeError, match=f"takes no '{name}'; did you mean '{meant}'\\?$"):
        strategy(**{name: 1})
    assert meant in {**strategy.arguments(), **RunArguments.__annotations__}


def test_all_arguments_that_there_are_not_are_named_at_once() -> None:
    line = (
        "takes no 'local_epochs'; did you mean 'max_local_steps'\\?, no 'rho', no 'step_size'; did"
    )
    with pytest.raises(TypeError, match=line):
        algorithms()["fed-dyn"].load_strategy()(local_epochs=10, rho=5.0, step_size=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_no_algorithm_without_a_private_form_takes_a_target(kind: type[PrimalDualStrategy]) -> None:
    private = bool(getattr(algorithms()[kind.algorithm].load_agent(), "noise_key", ""))
    assert ("target_epsilon" in kind.arguments()) is private
    if not private:
        line = rf"target-epsilon = 1\.0: {kind.algorithm} does not use it; it is a key of "
        with pytest.raises(ConfigError, match=line):
            read_config({"target-epsilon": 1.0, "algorithm": kind.algorithm})


# ------------------------------------------------------------------ privacy without a run config

TARGET: dict[str, Any] = {"clip": 0.5, "target_epsilon": 2.0, "delta": 1e-4, "num_agents": 3}


def private_run(strategy: PrimalDualStrategy, rounds: int = 4) -> PrivetResult:
    problems = logistic_agents(3)
    app = app_of(problems, strategy.algorithm)
    return strategy.start(InlineGrid(app, 3), zeros(4), num_rounds=rounds)


@pytest.mark.parametrize(
    "strategy",
    [
        FedPLT(local_solver="noisy-gd", row_norm=4.0, **TARGET),
        FedPDM(preset="private", participation=Fraction(0.7), **TARGET),
        Scaffold(max_local_steps=2, **TARGET),
    ],
    ids=lambda strategy: strategy.algorithm,
)
def test_start_meets_a_target_by_itself_and_says_so(strategy: PrimalDualStrategy) -> None:
    found = private_run(strategy).privacy
    assert found is not None
    assert (found.private, found.delta, found.relation) == (True, 1e-4, "replace-one")
    assert 1.99 < found.epsilon <= 2.0
    spent = {name: ledger.spent(1e-4) for name, ledger in found.agents.items()}
    assert found.epsilon == max(spent.values()) == spent[found.worst]


def test_a_run_that_promises_nothing_says_why() -> None:
    found = private_run(FedPLT(num_agents=3), rounds=1).privacy
    assert found is not None
    assert not found.private
    assert found.reason == "not private: updates leave without accounted noise"
    assert found.epsilon == math.inf


def test_a_target_needs_a_clip_and_to_know_the_rounds() -> None:
    with pytest.raises(ConfigError, match="target-epsilon needs clip > 0"):
        FedPLT(target_epsilon=1.0)
    problems = logistic_agents(3)
    grid = InlineGrid(app_of(problems, "scaffold"), 3)
    strategy = Scaffold(**TARGET)
    with pytest.raises(ConfigError, match=r"target-epsilon: needs start\(\), which knows"):
        strategy.configure_train(1, zeros(4), ConfigRecord(), grid)


@pytest.mark.parametrize("kind", [FedPLT, FedDyn, FedPD, FedSplit])
def test_large_rows_are_followed_in_parts_to_the_bit(
    kind: type[PrimalDualStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not kept between the check of an upload and the fold, three numbers a part."""

    def played() -> tuple[Any, list[Any]]:
        strategy: Any = kind(num_agents=3, participation=Fraction(0.7))
        app = app_of(logistic_agents(3), kind.algorithm)
        result = strategy.start(InlineGrid(app, 3), zeros(4), num_rounds=6)
        saved = strategy.half.dump(strategy.session.state)
        assert not any(one.failures for one in result.history)
        return [one.residual for one in result.history], saved

    residuals, whole = played()
    monkeypatch.setattr("privet.rounds.uploads.LARGE", 0)
    monkeypatch.setattr("privet.agents.inputs.PART", 3)
    again, parts = played()
    np.testing.assert_array_equal(again, residuals)
    for name, array in whole.items():
        assert np.array_equal(parts[name], array), name


def test_a_large_row_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.rounds.uploads.LARGE", 0)
    half = FedDyn().half
    state = half.initialise(np.zeros(4), 2)
    with pytest.raises(UploadError, match="not finite"):
        accept(half, state, 0, {"x": np.array([0.0, 1.0, np.nan, 0.0])}, {"x": state.x})
