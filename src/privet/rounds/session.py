"""The state of a run between its rounds: the half's state, the agents, and the history."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from privet.agents.state_tables import StateTable, of_rounds, with_ledgers
from privet.agents.upload_bounds import decay_of, is_bounded
from privet.core import NotFiniteError, UploadError
from privet.core.errors import listed, one_line
from privet.core.shapes import REAL, Entries, Items, require
from privet.data.agreement import Agreement, agreement, categories_alone
from privet.data.meaning import is_own, is_statement, named, read
from privet.data.scaling import between_sites
from privet.kernel import Facts
from privet.wire import Enrolment, Layout
from privet.wire.magnitude import finite
from privet.wire.payload import BUFFERS

from .failure import FRUITLESS, Failure, not_finite, overflowed
from .gaps import Gaps
from .robust import RobustFold
from .roster import EnrolledAgent, Roster, known_facts
from .server_steps import ServerSteps
from .task import Task
from .uploads import Block

log = logging.getLogger("flwr.privet")
_NUMBERS = re.compile(r"[\d.,e+-]*\d")

Metrics = Mapping[str, int | float | list[int] | list[float]]
"""As in Flower's ``MetricRecord``."""
METRICS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
"""The fields of a round's record that hold such."""


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round: a line of ``history.jsonl``.

    Attributes
    ----------
    round : int
        Counted from 1.
    participants : tuple of str
        Agents whose upload was folded.
    failures : dict of str to Failure
        Agents whose task ended in this round without an upload folded, or that could not be asked,
        with the reason.
    notes : tuple of str
        Further events, e.g. that an agent was sent its state again.
    loss, accuracy, stationarity : float
        From the server's monitor; without one loss and accuracy are those of ``evaluate_fn``, or
        of the agents' evaluation, if their metrics have these names. NaN where not evaluated.
    residual : float
        The algorithm's squared fixed-point residual over all enrolled agents; NaN where it is
        unknown, as while an agent was never folded.
    bytes_up, bytes_down : int
        Array and bytes lengths of the messages, without transport.
    seconds : float
        Wall time of the round with its evaluation.
    epsilon : float
        Largest total epsilon that is counted for an agent, lost replies among it; infinity where a
        reply was not private.
    clock : float
        Seconds since the run began, of simulated agents by their own clock (`Speeds`); NaN in a run
        whose rounds wait for all replies.
    versions : tuple of int
        In such a run, of each participant the round whose model it was sent; else empty.
    measures : dict of str to float
        Further numbers that the algorithm or the monitor measures, by kebab-case name.
    train_metrics_clientapp, evaluate_metrics_clientapp, evaluate_metrics_serverapp : dict
        The metrics of this round, as Flower's result has them of all rounds: those that came with
        the uploads, those of the agents' evaluation, and those of ``evaluate_fn``. Empty if there
        are none.
    """

    round: int
    participants: tuple[str, ...]
    failures: dict[str, Failure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    loss: float = math.nan
    accuracy: float = math.nan
    stationarity: float = math.nan
    residual: float = math.nan
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    epsilon: float = math.inf
    clock: float = math.nan
    versions: tuple[int, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)
    train_metrics_clientapp: Metrics = field(default_factory=dict)
    evaluate_metrics_clientapp: Metrics = field(default_factory=dict)
    evaluate_metrics_serverapp: Metrics = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the line of ``history.jsonl`` as JSON types: NaN is null, infinity "inf".

        Measures, metrics, clock and versions have an entry only if there are any.
        """
        line = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("versions", "measures", *METRICS):
            if not line[name]:
                del line[name]
        if math.isnan(self.clock):
            del line["clock"]
        return {name.replace("_", "-"): _json(value) for name, value in line.items()}

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> Round:
        """Return the round of ``to_dict``.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it is none.
        """
        require(line, _LINE)
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in line.items()}
        for name in ("loss", "accuracy", "stationarity", "residual", "epsilon"):
            values[name] = _float(values[name])
        values["clock"] = _float(values.get("clock"))
        values["versions"] = tuple(values.get("versions", ()))
        values["measures"] = {k: _float(v) for k, v in values.get("measures", {}).items()}
        values["failures"] = {k: Failure.from_json(v) for k, v in values["failures"].items()}
        for name in METRICS:
            metrics = values.get(name, {})
            values[name] = {key: _metric(value) for key, value in metrics.items()}
        values["participants"] = tuple(values["participants"])
        values["notes"] = tuple(values["notes"])
        if len(values["versions"]) not in (0, len(values["participants"])):
            raise ValueError("versions: expected one for each participant")
        return cls(**values)


_LINE = Entries(
    {
        "round": int,
        "participants": Items(str),
        "failures": Entries(others=Entries({"code": str, "text": str}, required=("code", "text"))),
        "notes": Items(str),
        **dict.fromkeys(("loss", "accuracy", "stationarity", "residual", "epsilon", "clock"), REAL),
        **dict.fromkeys(("bytes-up", "bytes-down", "seconds"), float),
        "versions": Items(int),
        "measures": Entries(others=REAL),
        **{name.replace("_", "-"): Entries() for name in METRICS},
    }
)


def _metric(value: Any) -> Any:
    if isinstance(value, list):
        return [_metric(each) for each in value]
    return value if isinstance(value, int) else _float(value)


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_json(each) for each in value]
    if isinstance(value, Failure):
        return value.to_json()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


RECENT = 3
"""Rounds for which numbers of an agent that were not finite count beside another's."""
REPEATS = 3
"""Tasks of an agent in a private run that may come to nothing where its upload alone is missing."""


class _Fit(NamedTuple):
    """Which arrays of the starting model an agent trains, takes as buffers, and ties."""

    trained: Sequence[str]
    buffers: Sequence[str]
    tied: Mapping[str, str]


class _Usual(NamedTuple):
    """What `Session.usual` keeps as long as agents state the same numbers."""

    agents: Mapping[str, EnrolledAgent]
    stated: tuple[int, int]
    """How often their numbers have changed, and how many agents there are."""
    middle: Facts | None
    """The public numbers of the agent with the middle penalty of them."""
    pairs: dict[str, tuple[Facts, Facts]]
    """By the text of an agent's numbers, what is returned of it."""

    def of(self, facts: Facts) -> Facts:
        """Return public numbers with the middle one's loss and regulariser, if theirs bound less.

        They are returned themselves where that changes nothing.
        """
        middle = self.middle
        if middle is None or not is_bounded(middle):
            return facts
        if is_bounded(facts) and decay_of(facts) <= decay_of(middle):
            return facts
        usual = replace(
            facts,
            loss=middle.loss,
            regularizer=middle.regularizer,
            modulus=middle.modulus,
            penalty=middle.penalty,
        )
        return facts if usual == facts else usual


@dataclass
class Session:
    """The state of one run on the server.

    ``layout`` is of the arrays of the starting model that the agents train: all its floats, until
    an agent enrols whose model names fewer. The others come back as they were, but for the
    statistics (``buffers``) that the agents are sent and may send back, whose mean follows.
    """

    experiment: str
    layout: Layout
    arrays: ArrayRecord
    """The starting model."""
    state: Any
    roster: Roster
    gaps: Gaps = field(default_factory=lambda: Gaps(0))
    """Every agent's part of the residual."""
    look: Callable[[Block], object] = bool
    """Called with the uploads in clear while they are folded, a block perhaps more than once."""
    steps: ServerSteps = field(default_factory=ServerSteps)
    """The server's optimizer."""
    robust: RobustFold = field(default_factory=RobustFold)
    """What uploads in clear are folded by."""
    round: int = 0
    history: list[Round] = field(default_factory=list)
    initial: Round = Round(0, (), epsilon=0.0)
    """The measures of the starting model: round 0, which is not in the history."""
    remarks: list[str] = field(default_factory=list)
    """Notes to be recorded in the history with the next round."""
    settings_before: Mapping[str, Any] = field(default_factory=dict)
    """The agents' settings before a resume, empty in a run that was not resumed."""
    rounds_before: int = 0
    """The number of the last round that was asked for before a resume, 0 where that is unknown."""
    noises: set[float] = field(default_factory=set)
    """The noises that agents were asked for before a resume."""
    calibrated: bool = False
    """Whether the noise was checked or set for the agents enrolled by then."""
    mean_examples: float = 0.0
    """The mean number of examples of the first round's agents, if agents are weighted by them."""
    pooled_weight: float = 0.0
    """The weight of the agents' penalties, if they leave it to the run."""
    buffers: Layout | None = None
    statistics: NDArray[Any] | None = None
    """The numbers of ``buffers``, flat."""
    tied: Mapping[str, str] | None = None
    """Tied parameters: further names of trained arrays in the starting model, each with the name
    that is sent and whose values it takes; None until an agent has stated them."""
    arrays_fixed: bool = False
    """Whether an agent has stated which arrays are trained."""
    tasks: dict[str, Task] = field(default_factory=dict)
    """By name, what agents are working on, in a run that does not wait for all of them."""
    uploads: int = 0
    """The number of uploads folded in such a run."""
    clock: float = 0.0
    """Seconds since such a run began."""
    leader: str = ""
    """What the columns of the coordinator's own data mean, as its agents state theirs."""
    encoding: Agreement = field(default_factory=Agreement)
    """What the columns of all agents mean; they were told where theirs differed."""
    others: str = "the others"
    """How a line names the agents that have it."""
    settled: bool = False
    """Whether it is known what the columns of all agents mean."""
    encoding_sent: str = ""
    """What messages name it by, where they do: its digest, and ``row_norm`` where there is one."""
    row_norm: float = 0.0
    """The norm that the algorithm itself scales all agents' rows down to; 0 for none."""
    spent: Counter[str] = field(default_factory=Counter)
    """In a private run, by agent the requests since an upload was folded last: each task of these
    is charged."""
    fruitless: Counter[str] = field(default_factory=Counter)
    """In a private run, by agent its tasks in a row of which no upload of its own was folded."""
    complaints: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """Why an agent's upload was not in a round, as first logged, and how often; by the agent and
    the reason without its numbers."""
    not_finite: dict[str, int] = field(default_factory=dict)
    """By agent, the last round in which its numbers were not finite."""
    saved_states: Callable[[], list[StateTable]] = list
    """Returns the agents' states of the newest checkpoint; none where there is none."""
    _usual: _Usual = field(default_factory=lambda: _Usual({}, (-1, 0), None, {}))

    @classmethod
    def of(cls, experiment: str, arrays: ArrayRecord) -> Session:
        """Return the session of a run that starts from a model, without state and agents."""
        return cls(experiment, Layout.of_floats(arrays), arrays, None, Roster())

    def remark(self, line: str) -> None:
        """Log a line, and note it in the history with the next round."""
        self.remarks.append(line)
        log.warning("%s", line)

    def complain(self, number: int, name: str, what: str, *, traceback: bool = False) -> None:
        """Log why an agent's upload is not in a round where the reason is new, else count it.

        `privet.rounds.absences.Complaints` says at the run's end how often.
        """
        reason = (name, _NUMBERS.sub("", what))
        first, count = self.complaints.get(reason, (what, 0))
        self.complaints[reason] = (first, count + 1)
        if not count:
            log.warning("round %d: agent %s %s", number, name, what, exc_info=traceback)

    def skip_to(self, number: int) -> list[Round]:
        """Skip the rounds before ``number`` and return their records.

        No agent is asked in them, and nothing is charged.
        """
        missed = range(self.round + 1, number)
        epsilon = self.history[-1].epsilon if self.history else 0.0
        notes = (f"not played: this server was away, and goes on with round {number}",)
        skipped = [Round(one, (), notes=notes, epsilon=epsilon) for one in missed]
        if skipped:
            log.warning("rounds %d to %d: %s", missed[0], missed[-1], notes[0])
            self.history += skipped
            self.round = missed[-1]
        return skipped

    def amend(self, **changes: Any) -> None:
        """Replace fields of the last round's record."""
        self.history[-1] = replace(self.history[-1], **changes)

    def in_vain(self, name: str, max_uploads: int, *, at_hand: bool = False) -> bool:
        """Whether an agent of a private run is not asked again until an upload is folded.

        A task is charged whether or not it is folded, so what brings nothing is not repeated: one
        task without an upload folded is enough. `REPEATS` are allowed in two cases: accepted
        uploads of others wait in this round (``at_hand``); or this agent was folded before, and
        some other has had all its tasks, so that its upload alone is missing.
        """
        spent = self.spent[name]
        if not spent:
            return False
        agents = self.roster.agents
        last = max_uploads > 0 and agents[name].tag > 0
        last = last and any(agent.tasks >= max_uploads for agent in agents.values())
        return spent >= (REPEATS if at_hand or last else 1)

    def note_gain(self) -> None:
        """Note that uploads were folded: forget spent tasks, but those that agents work on."""
        if self.spent:
            self.spent = Counter(self.tasks.keys())

    def note_fruitless(self, rounds: Iterable[Round]) -> None:
        """Ask an agent no more whose last tasks came to nothing, and may have been charged.

        Uploads of others are no reason to ask it for ever: a node that cannot write its state, or
        is too slow, would lose its whole budget; one that is to be enrolled again each time states
        an account each time. One that refuses charges nothing; one whose sum was spoiled is not at
        fault.
        """
        reasons: dict[str, str] = {}
        for done in rounds:
            for name in done.participants:
                del self.fruitless[name]
            for name, failure in done.failures.items():
                if failure.code in FRUITLESS:
                    self.fruitless[name] += 1
                    reasons[name] = failure.text
        for name, why in reasons.items():
            agent = self.roster.agents.get(name)
            if agent is not None and not agent.out and self.fruitless[name] >= REPEATS:
                self.roster.leave_out(
                    name,
                    f"its last {REPEATS} tasks came to nothing, and each may count as charged: "
                    f"resume the run when it can answer: {why}",
                )

    def overflowed(
        self, failures: Mapping[str, Failure], chosen: int, never_folded: Collection[str]
    ) -> bool:
        """Whether a round's failures, with those of the rounds before, show divergence.

        See `failure.overflowed`.
        """
        counted = (name for name in not_finite(failures) if name not in never_folded)
        self.not_finite |= dict.fromkeys(counted, self.round)
        lately = [name for name, last in self.not_finite.items() if self.round - last <= RECENT]
        several = len(self.roster.agents) > 1
        return overflowed(failures, chosen, never_folded, lately if several else None)

    @property
    def begun_here(self) -> bool:
        """Whether the run is no resumed one, so that no agent can have released anything before."""
        return not self.settings_before

    @property
    def has_folded(self) -> bool:
        """Whether any upload was folded in the run so far."""
        return any(done.participants for done in self.history)

    def usual(self, text: str) -> tuple[Facts, Facts]:
        """Return an agent's public numbers, and the same with the loss and regulariser of most
        agents, where its own would give its uploads a looser bound.

        Raises
        ------
        ValueError
            If the text of its numbers cannot be read.
        """
        roster = self.roster
        kept = self._usual
        stated = roster.statements, len(roster.agents)
        if kept.agents is not roster.agents or kept.stated != stated:
            known = known_facts(roster.agents.values())
            known.sort(key=lambda one: (not is_bounded(one), decay_of(one)))
            middle = known[(len(known) - 1) // 2] if known else None
            kept = self._usual = _Usual(roster.agents, stated, middle, {})
        if (pair := kept.pairs.get(text)) is None:
            if len(kept.pairs) > len(roster.agents):
                kept.pairs.clear()
            facts = Facts.from_json(text)
            pair = kept.pairs[text] = facts, kept.of(facts)
        return pair

    def saved_of(self, names: Iterable[str]) -> list[StateTable]:
        """Return agents' states of the newest checkpoint, those after the round accepted last.

        Their accounts are the run's, which hold lost replies too.
        """
        agents = self.roster.agents
        rounds = {name: tag for name in names if (tag := agents[name].tag)}
        if not rounds:
            return []
        tables = of_rounds(self.saved_states(), self.experiment, rounds)
        return with_ledgers(tables, {name: agents[name].ledger for name in rounds})

    @property
    def start(self) -> NDArray[Any]:
        """The trained arrays of the starting model, flat; not cached, as few rounds need it."""
        return self.layout.flatten(self.arrays)

    def check(self, enrolment: Enrolment) -> str:
        """Return why an agent's columns or model do not fit the run's, or an empty text."""
        stated, agreed = enrolment.encoding, self.encoding
        if stated and stated != agreed.text and not is_statement(stated):
            return "what it says of its columns cannot be read"
        if agreed.text and not agreed.has(stated):
            others = "the coordinator's data" if self.leader else self.others
            return agreed.unfit(stated, others) or (
                "what it says of its columns is not what it was told that all have: its table "
                "has changed since, or its app does not build its problem by "
                "privet.data.problem_from_context"
            )
        fit = self._fit(enrolment)
        return fit if isinstance(fit, str) else ""

    def agree(self, simulated: bool) -> list[str]:
        """Fix what the columns of all agents mean, by what they have stated.

        Returned are the names of those that stated something else. Messages name the encoding where
        a node may lose it, or read another file later.
        """
        stated = self.roster.encodings
        if all(map(is_own, stated.values())):  # the coordinator's data are of another kind
            self.leader = ""
        self.encoding = agreement(stated, self.leader, self.roster.spare(self.layout.dim))
        self.others = self.encoding.like(stated)
        self.settled = True
        self._tell_of_columns(stated)
        others = [name for name, text in stated.items() if not self.encoding.has(text)]
        if others:
            log.info("agents %s are asked again, for the run's columns and scaling", listed(others))
        if self.encoding.text and (others or not simulated):
            self.encoding_sent = named(self.encoding.mark, self.row_norm)
        return others

    def _tell_of_columns(self, stated: Mapping[str, str]) -> None:
        """Log columns in which sites differ in a way that their rows hardly explain, as by another
        unit, and categories that the run has from a single site.

        A site that alone changes the deviation of all is named in the run's history as well.
        """
        if (agreed := self.encoding.meaning) is None:
            return
        read_ones = {name: one for name, text in stated.items() if text and (one := read(text))}
        alike = {name: one for name, one in read_ones.items() if one.difference(agreed) is None}
        if agreed.scale:
            doubts = between_sites(alike)
            if doubts.several:
                log.warning("%s", one_line(listed(doubts.several)))
            for line in doubts.alone:
                self.roster.note(one_line(line))
        if found := categories_alone(alike):
            log.info("categories of a single agent: %s", one_line(listed(found)))

    def adopt(self, enrolment: Enrolment) -> None:
        """Take over the model description of an enrolled agent.

        The first agent fixes which of the starting model's arrays are trained: all, where it names
        none.
        """
        fit = self._fit(enrolment)
        if isinstance(fit, str):
            return
        if fit is None:
            self.arrays_fixed = True
            return
        if not self.arrays_fixed:
            self.fix_arrays(fit.trained, fit.buffers)
        self.tied = fit.tied

    def _fit(self, enrolment: Enrolment) -> _Fit | str | None:
        """Return how an agent's model fits the run's, or why not; None for one flat array."""
        try:
            model, held = (
                Layout.from_json(text) if text else None
                for text in (enrolment.layout, enrolment.buffers)
            )
        except ValueError as error:
            return one_line(str(error))
        trained, buffers = self.layout, self.buffers
        if model is not None and not self.arrays_fixed:
            trained = self.layout.chosen(model) or trained
            buffers = held and self.layout.chosen(held)
        if enrolment.dim != trained.dim:
            difference = "" if model is None else model.difference(trained)
            numbers = f"its model has {enrolment.dim} parameters, the server's {trained.dim}"
            return f"{numbers}: {difference}" if difference else numbers
        if model is not None and (difference := model.difference(trained)):
            return f"its model has {difference} by the starting model"
        if enrolment.dtype != trained.dtype_name:
            return f"computes in {enrolment.dtype}, the server in {trained.dtype_name}"
        if held is not None and buffers is None and not self.arrays_fixed:
            return (
                f"it takes {held.names[0]!r} from the server, which is not in the starting "
                "model: begin with initial_arrays(model), or its state_dict()"
            )
        if buffers is not None and (both := set(buffers.names) & set(trained.names)):
            return f"it trains {min(both)!r}, and takes it from the server as a buffer"
        if held is None or buffers is None:
            differ = held is not None or buffers is not None
        else:
            differ = held.dim != buffers.dim or bool(held.difference(buffers))
        if differ:
            return "handles its buffers (average, constant, local) differently from other agents"
        if model is None:
            return None
        pairs = [*zip(model.names, trained.names, strict=False)]  # one flat array stands for any
        if held is not None and buffers is not None:
            pairs += zip(held.names, buffers.names, strict=True)
        try:
            tied = self._tied(enrolment.tied, dict(pairs))
        except ValueError as error:
            return one_line(str(error))
        if self.tied not in (None, tied):
            return "it ties other parameters of its model than other agents do"
        return _Fit(trained.names, () if buffers is None else buffers.names, tied)

    def _tied(self, text: str, names: Mapping[str, str]) -> dict[str, str]:
        """Return the tied names that an agent stated, as the starting model has them.

        ``names`` are the starting model's of the agent's arrays (raises ``ValueError``).
        """
        try:
            stated = json.loads(text) if text else {}
        except RecursionError:
            stated = None
        if not isinstance(stated, dict) or not all(isinstance(n, str) for n in stated.values()):
            raise ValueError("its statement of tied parameters is not a table of names")
        tied, trained = {}, set(names.values())
        for other, target in stated.items():
            if target not in names:
                raise ValueError(f"it ties {other!r} to {target!r}, which it does not train")
            name = names[target]
            if target.endswith(name):  # one side may have a prefix more, as a wrapped module has
                alias = other.removeprefix(target.removesuffix(name))
            else:
                alias = name.removesuffix(target) + other
            if alias in trained:
                raise ValueError(f"it ties {alias!r} to {target!r}, but trains both")
            if alias not in self.arrays:
                continue  # the starting model lacks this name, so nothing is returned under it
            if self.arrays[alias].shape != self.arrays[name].shape:
                raise ValueError(f"it ties {alias!r} to {name!r}, of another shape in the start")
            tied[alias] = name
        return tied

    def fix_arrays(self, trained: Iterable[str], buffers: Iterable[str]) -> None:
        """Fix the trained arrays, and the buffers that the agents are sent in addition."""
        self.arrays_fixed = True
        self.layout = Layout.of(ArrayRecord({name: self.arrays[name] for name in trained}))
        if named := {name: self.arrays[name] for name in buffers}:
            self.buffers = Layout.of(ArrayRecord(named))
            self.statistics = self.buffers.flatten(self.arrays)

    @property
    def buffers_sent(self) -> dict[str, NDArray[Any]]:
        """The statistics of the model's buffers for the broadcast: an empty dict or one array."""
        return {} if self.statistics is None else {BUFFERS: self.statistics}

    def restore(self, vector: NDArray[Any]) -> ArrayRecord:
        """Return a model as the named arrays of the starting model."""
        arrays = {**self.arrays, **self.layout.restore(vector)}  # in the former's order
        if self.buffers is not None and self.statistics is not None:
            arrays |= self.buffers.restore(self.statistics)
        for alias, name in (self.tied or {}).items():
            kind = self.arrays[alias].dtype
            same = arrays[name].dtype == kind
            arrays[alias] = arrays[name] if same else Array(arrays[name].numpy().astype(kind))
        return ArrayRecord(arrays)

    def statistics_of(self, sent: NDArray[Any] | None) -> NDArray[Any] | None:
        """Return a copy of an upload's statistics, if it has any.

        Raises
        ------
        UploadError
            If they are not the model's, or not finite.
        """
        expected = self.statistics
        if sent is None:
            return None
        if expected is None or (sent.shape, sent.dtype) != (expected.shape, expected.dtype):
            raise UploadError("upload holds buffers that do not fit the model")
        if not finite(sent):
            raise NotFiniteError("upload holds buffers that are not finite")
        return sent.copy()

    def average(self, statistics: Iterable[NDArray[Any] | None]) -> None:
        """Take the mean of the statistics that came with the uploads, if any did.

        Where the fold is robust, their median.

        Uploads without any count as the present ones, so that no single agent sets those of all.
        """
        sent, known = list(statistics), self.statistics
        if known is not None and any(each is not None for each in sent):
            every = [known if each is None else each for each in sent]
            self.statistics = self.robust.average(every).astype(known.dtype)
