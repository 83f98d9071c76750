"""The run-config keys about data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from privet.core import ConfigError, algorithms
from privet.core.key import AUTO, LARGEST, SMALLEST, keys_of, read, setting
from privet.core.rows import owners
from privet.problems import REGULARIZER_NAMES, Regularizer, make_regularizer
from privet.problems.loss import Loss
from privet.problems.losses import LOSSES
from privet.problems.regularizers import USUAL_WEIGHT
from privet.wire.contract import PRIVATE_KEYS

from .dataset import DataError
from .dealing import Partition
from .hub import PREFIX
from .loaders import DTYPES, FROM_PATH, NAMES, TABLES
from .partitions import PARTITIONS, SCHEMES
from .sql.cohorts import URLS
from .tables.dates import DATES
from .tables.faults import CENSORED, INFINITE, MISSING, MISSING_LABELS

INTERCEPT = {"auto": None, "yes": True, "no": False}
GENERATED = ("synthetic", "regression")
AUTOMATIC_WEIGHT = -1.0
"""The value of ``regularizer-weight`` that takes scikit-learn's on the pooled rows."""
OWN_KEYS = owners(PARTITIONS, LOSSES)
"""Owners of the keys that partitions and losses bring."""


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The run-config keys about data; the fields are the keys of the same names.

    Attributes
    ----------
    own : tuple
        The values of the partitions' and losses' own keys, one object of each class of `OWN_KEYS`.
    """

    topic: ClassVar[str] = "Data, loss and regulariser"

    dataset: str = setting("breast-cancer", "name of the data set", choices=NAMES)
    data_path: str = setting(
        "",
        "path of the data, where the data set needs one; absolute, or relative on the command line",
        needs={"dataset": FROM_PATH},
        path=(PREFIX, *URLS),
    )
    cohort: str = setting(
        "",
        "which of the cohorts that the operators of dataset sql name in their files the run is of; "
        "empty: that of each node's config",
    )
    data_seed: int = setting(
        42, "seed of generated data, and of the test split where the data have none", low=0
    )
    features: int = setting(5, "number of features", low=2, needs={"dataset": GENERATED})
    examples_per_agent: int = setting(
        250, "examples of each agent", low=1, needs={"dataset": GENERATED}
    )
    columns: int = setting(
        0,
        "number of columns; auto is the file's",
        low=0,
        words={AUTO: 0},
        needs={"dataset": "click"},
    )
    hashing: bool = setting(False, "hash the indices to the columns", needs={"dataset": "click"})
    label_column: str = setting(
        "",
        "csv and hf: tables: column of the labels; empty takes the usual one",
        needs={"dataset": FROM_PATH},
    )
    id_column: str = setting(
        "",
        "csv and hf: tables: column of the ids by which partition = natural-id deals; empty: none",
        needs={"dataset": FROM_PATH},
    )
    person_column: str = setting(
        "",
        "column that says whose a row is: the rows of one person stay in one agent, and on one "
        "side of the hold-out",
        needs={"dataset": TABLES},
    )
    drop_columns: str = setting(
        "",
        r"columns to leave out, separated by commas; a comma of a name is \,",
        needs={"dataset": TABLES},
    )
    schema: str = setting(
        "",
        "TOML file with the public ranges and categories of the columns; absolute, or relative "
        "on the command line",
        needs={"dataset": TABLES},
        path=(),
    )
    missing: str = setting(
        "refuse",
        "what missing values become: a category of their own, the mean, or 0 (numbers alone); drop "
        "leaves their rows out",
        choices=MISSING,
        needs={"dataset": TABLES},
    )
    missing_labels: str = setting(
        "refuse",
        "what rows without a label, an id of id-column or a person of person-column are: refused, "
        "or left out",
        choices=MISSING_LABELS,
        needs={"dataset": TABLES},
    )
    censored: str = setting(
        "refuse",
        "what <5 and >500 are in a column of numbers: refused, the bound that is written, or half "
        "of it (of > the bound)",
        choices=CENSORED,
        needs={"dataset": TABLES},
    )
    infinite: str = setting(
        "refuse",
        "what infinite numbers are: refused, missing values, or (drop) their rows are left out",
        choices=INFINITE,
        needs={"dataset": TABLES},
    )
    dates: str = setting(
        "refuse",
        "what dates become: numbers of days, of 5.1.2020 with the day or the month first",
        choices=DATES,
        needs={"dataset": TABLES},
    )
    intercept: str = setting(
        "auto", "whether to add a column of ones; auto: as the data set has it", choices=INTERCEPT
    )
    partition: str = setting(
        AUTO,
        "how the examples are dealt to the agents; auto: natural-id with id-column, else iid for "
        "dataset csv and label for the others",
        choices=(AUTO, *SCHEMES),
    )
    partition_seed: int = setting(
        0,
        "seed of the partition",
        low=0,
        needs={"partition": tuple(name for name, row in PARTITIONS.items() if row.seeded)},
    )
    loss: str = setting(
        "auto",
        "loss function of every agent; auto: binary-logistic for two classes, multinomial-logistic "
        "for more, ridge for numbers",
        choices=("auto", *LOSSES),
    )
    regularizer: str = setting(
        "l2", "smooth regulariser of each agent's loss", choices=REGULARIZER_NAMES
    )
    regularizer_weight: float = setting(
        AUTOMATIC_WEIGHT,
        "weight of the regulariser; auto is scikit-learn's C = 1 on the pooled rows: 1 over the "
        "examples of all agents, which count alike, with the intercept left out; in a private "
        f"run, and with a divisor or another regulariser, auto is {USUAL_WEIGHT:g}, for every "
        "coordinate",
        low=0,
        words={AUTO: AUTOMATIC_WEIGHT, "none": 0},
        needs={"regularizer": ("l2", "nonconvex"), "beta": 0.0},
    )
    penalty_c: float = setting(
        1.0,
        "scikit-learn's C on the pooled rows, where regularizer-weight is automatic: 1 / C times "
        "the penalty of C = 1",
        low=0,
        open_low=True,
        floor=SMALLEST,
        high=LARGEST,
        needs={"regularizer": "l2", "regularizer_weight": AUTOMATIC_WEIGHT, "beta": 0.0},
    )
    beta: float = setting(
        0.0,
        "weight of ||x||^2 in the sum; sets regularizer-weight to 2 beta / agents; none keeps that",
        low=0,
        words={"none": 0},
        needs={"regularizer": "l2"},
    )
    divisor: str = setting(
        "auto",
        "what a summed loss is divided by: the agent's own number of examples, or that of all "
        "agents; auto: the algorithm's choice",
        choices=("auto", "agent", "federation"),
    )
    row_norm: float = setting(
        0.0,
        "rows, the intercept included, are scaled down to this public L2 norm; none leaves them",
        low=0,
        words={"none": 0},
        floor=1e-30,
        high=LARGEST,
        topic="Privacy",
    )
    dtype: str = setting("float64", "floating-point type of data and models", choices=DTYPES)
    own: tuple[Any, ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DataSettings:
        """Read the keys that are there; those of other owners are ignored.

        Raises
        ------
        DataError
            A value of the wrong type or outside its range: names the key.
        """
        raw = dict(config)
        if raw.get("data-path") is not None:
            raw["data-path"] = str(raw["data-path"])
        raw["partition"] = dealt_by(raw)
        pooled = not is_private(raw) and raw.get("divisor", "auto") == "auto"
        if raw.get("divisor", "auto") == "auto":
            raw["divisor"] = _divisor_of(str(config.get("algorithm")))
        try:
            settings = replace(read(cls, raw), own=tuple(read(kind, raw) for kind in OWN_KEYS))
        except ConfigError as error:
            raise DataError(str(error)) from None
        if settings.beta and settings.regularizer != "l2":
            raise DataError(f"beta needs regularizer = l2, found {settings.regularizer}")
        weight = settings.regularizer_weight
        if weight < 0 and not (pooled and settings.regularizer == "l2" and not settings.beta):
            if settings.penalty_c != 1.0:
                raise DataError(
                    f"penalty-c = {settings.penalty_c:g}: the penalty of a private run and of one "
                    "with a divisor is not scikit-learn's; give regularizer-weight"
                )
            settings = replace(settings, regularizer_weight=USUAL_WEIGHT)
        return settings

    @property
    def pooled(self) -> bool:
        """Whether the objective is scikit-learn's of C = `penalty_c` on the rows of all agents."""
        return self.regularizer_weight == AUTOMATIC_WEIGHT

    def pooled_weight(self, divisor: float, num_agents: int) -> float:
        """Return the weight of `PooledL2` in each of so many agents' losses: 1 / (C D N)."""
        return 1.0 / (self.penalty_c * divisor * num_agents)

    def keys_of_row(self, row: Partition | Loss) -> Any:
        """Return the values of a partition's or loss's own keys."""
        return next((own for own in self.own if type(own) is row.keys), row.keys())

    def make_regularizer(self, num_agents: int) -> Regularizer:
        """Return the regulariser of each of so many agents, where it is not `pooled`.

        Raises
        ------
        DataError
            An unknown name, or a weight that cannot be one.
        """
        share = 2.0 * self.beta / num_agents
        try:
            return make_regularizer(self.regularizer, share or self.regularizer_weight)
        except ValueError as error:
            raise DataError(str(error)) from None

    def divisor_of(self, num_examples: int, dealt: int, num_agents: int) -> float:
        """Return D of an agent with so many of the examples that are dealt to all agents."""
        if self.divisor == "federation":
            return dealt
        return dealt / num_agents if self.pooled else num_examples


def is_private(config: Mapping[str, Any]) -> bool:
    """Return whether a run of this config, checked or not, clips or adds noise."""
    values = [config.get(key) for key in PRIVACY_KEYS]
    return any(isinstance(value, int | float) and value > 0 for value in values)


def require_used(config: Mapping[str, Any]) -> None:
    """Refuse a node's own file, or what is said of it, where its data set reads none.

    Built-in examples would be trained on in place of the node's own.

    Raises
    ------
    DataError
    """
    keys = {key.name: key for key in keys_of(DataSettings).values()}
    dataset = config.get("dataset", keys["dataset"].default)
    if dataset in FROM_PATH:
        return
    for name, key in keys.items():
        of_files = set(FROM_PATH) >= set(key.needs.get("dataset") or ("",))
        if of_files and config.get(name, key.default) != key.default:
            why = key.unused({"dataset": dataset})
            raise DataError(f"node-config: {name} is {why}: set dataset to what the file holds")


def dealt_by(config: Mapping[str, Any]) -> Any:
    """Return how a run config's examples are dealt, where ``partition = auto`` leaves it open.

    A table of one's own is dealt at random: by labels only where that is asked for.
    """
    asked = config.get("partition", AUTO)
    if asked != AUTO:
        return asked
    if config.get("id-column"):
        return "natural-id"
    return "iid" if config.get("dataset") in TABLES else "label"


def _divisor_of(algorithm: str) -> str:
    """Return the divisor that ``divisor = auto`` stands for with an algorithm."""
    known = algorithms()
    return str(known[algorithm].load_agent().divisor) if algorithm in known else "agent"


DATA_OWNERS: tuple[type, ...] = (DataSettings, *OWN_KEYS)
"""Owners of all keys about data."""
PRIVACY_KEYS = (*PRIVATE_KEYS, "target-epsilon")
"""Keys of a run that the objective depends on beside those about data."""
DATA_KEYS = frozenset(key.name for owner in DATA_OWNERS for key in keys_of(owner).values())
"""Names of all keys about data."""
