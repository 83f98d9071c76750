"""A run-config key as a dataclass field: its type, default, range and meaning, where it is used.

Who uses a key declares it, as a field of a frozen dataclass: the agent half of an algorithm, its
server half, the run, the data. Everything else - the checks, ``privet run --help KEY``, the
reference page, the block of pyproject.toml, "did you mean" - reads it from there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from .errors import ConfigError, did_you_mean
from .plugins import Names

Scalar = bool | int | float | str
T = TypeVar("T")

AUTO = "auto"
"""How a value that the library chooses is written."""

SMALLEST, LARGEST = 1e-100, 1e100
"""Step sizes, penalties, clips and noise are 0 or in between: beyond, products with them under- or
overflow."""

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "lr": ("step_size", "step_size_base", "eta_rule"),
    "learning_rate": ("step_size", "step_size_base", "eta_rule"),
    "step_size": ("step_size_base",),
    "eta": ("step_size", "step_size_base", "eta_rule"),
    "server_lr": ("server_step_size",),
    "epochs": ("local_epochs", "max_local_steps", "local_updates"),
    "local_steps": ("local_epochs", "max_local_steps", "local_updates"),
    "steps": ("local_epochs", "max_local_steps", "local_updates"),
    "batch": ("batch_size",),
    "batchsize": ("batch_size",),
    "solver": ("local_solver",),
    "optimizer": ("local_solver",),
    "max_grad_norm": ("clip",),
    "l2_norm_clip": ("clip",),
    "clip_norm": ("clip",),
    "noise_multiplier": ("noise_scale", "noise_variance"),
    "sigma": ("noise_scale", "noise_variance"),
    "eps": ("target_epsilon",),
    "epsilon": ("target_epsilon",),
    "mu": ("strong_convexity", "common_convexity"),
    "dp": ("target_epsilon",),
    "privacy": ("target_epsilon",),
    "noise": ("target_epsilon", "noise_scale", "noise_variance"),
    "momentum": ("server_momentum",),
    "alpha": ("dirichlet_alpha", "alpha_u"),
    **dict.fromkeys(("clients", "num_clients", "n_clients", "nodes", "agents"), ("num_agents",)),
    **dict.fromkeys(("rounds", "num_rounds", "n_rounds", "iterations"), ("num_server_rounds",)),
}
"""What the field calls an argument, and what it is called here, in order of preference."""


def meant(name: str, known: Container[str]) -> list[str]:
    """Return the known keys that a word of the field, or of another library, stands for."""
    words = SYNONYMS.get(name.replace("-", "_").lower(), ())
    return [one for one in (word.replace("_", "-") for word in words) if one in known]


@dataclass(frozen=True, slots=True)
class Key:
    """One run-config key, as its owner declares it.

    Attributes
    ----------
    name : str
        Kebab case; the field of the same name has underscores.
    default : bool, int, float or str
        Its type is the key's type.
    doc : str
        What it means, in one phrase.
    choices : tuple of str
        What a text may be; empty for any.
    low, high : float
        Range of a number; ``open_low`` excludes ``low`` itself.
    floor : float
        Smallest value above 0, where 0 itself has a meaning of its own.
    needs : mapping of str to tuple or None
        Other keys, and the values at which this one is used at all; None is any but empty or 0.
    words : mapping of str to int, float or str
        What the words stand for that may be written in place of a value: ``auto`` where the library
        chooses, ``none`` or ``all`` where there is no limit. The value keeps that meaning, as
        configs and checkpoints have it, and lists show the word.
    automatic : tuple of two values, optional
        What ``auto`` stands for: in general, and where no agent knows its problem's moduli.
    operational : bool
        Whether it says how a run is operated, and not what is computed.
    only_unset : bool
        Whether the default stands for a key that is not there, and is an error where it is written.
    path : tuple of str, optional
        Of a path: what stands for something else, a word or, with a colon, a beginning.
    topic : str
        Heading in lists of keys: the key's own, or that of the class that declares it
        (``topic: ClassVar[str]``).
    """

    name: str
    default: Scalar
    doc: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    floor: float = 0.0
    needs: Mapping[str, tuple[Scalar, ...] | None] = field(default_factory=dict)
    words: Mapping[str, Scalar] = field(default_factory=dict)
    automatic: tuple[Scalar, Scalar] | None = None
    operational: bool = False
    only_unset: bool = False
    path: tuple[str, ...] | None = None
    topic: str = field(default="", compare=False)

    def check(self, value: Any) -> Scalar:
        """Return the value in the key's type.

        Raises
        ------
        ConfigError
            If the type, range or choice is wrong.
        """
        kind = type(self.default)
        numpy: Any = sys.modules.get("numpy")  # whoever gives one of its numbers has imported it
        if numpy is not None and isinstance(value, numpy.generic):
            value = value.item()
        if isinstance(value, str) and value in self.words:
            value = kind(self.words[value])
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{self.name}: a whole number of more than 64 bits")
        if kind is float and type(value) is int:
            value = float(value)
        if kind is str and type(value) in (int, float):  # one agent, one probability
            value = str(value)
        if kind is float and value == "inf":
            value = math.inf
        if type(value) is not kind and not self.choices:
            words = "".join(f"{word} or " for word in self.words)
            raise ConfigError(f"{self.name} = {value!r}: expected {words}{_KINDS[kind]}")
        if self.choices and value not in self.choices:
            # Short ones such as gd and sgd resemble each other, and are not meant for each other.
            near = self.choices.where(str(value)) if isinstance(self.choices, Names) else ""
            near = near or did_you_mean(str(value), [one for one in self.choices if len(one) > 3])
            raise ConfigError(
                f"{self.name} = {value!r}: choose one of "
                f"{', '.join(map(self.text, self.choices))}{near}"
            )
        if isinstance(value, int | float) and kind is not bool and not self._is_open(value):
            self._check_range(value)
        checked: Scalar = value
        return checked

    @property
    def written_default(self) -> Scalar:
        """The default as signatures and apps have it: its word where it has one."""
        return self.default_text if self.default_text in self.words else self.default

    @property
    def default_text(self) -> str:
        """The default as it is written in a config."""
        return self.text(self.default)

    def text(self, value: Any) -> str:
        """Return a value as it is written in a config: as its word where it has one."""
        for word, meant in self.words.items():
            if value == meant and not isinstance(value, bool):
                return word
        return shown(value)

    @property
    def bounds(self) -> str:
        """The range of a number as it is said; empty for any. What has a word is outside of it."""
        open_low = self.open_low or self.text(self.low) in self.words
        below = [f"{'>' if open_low else '>='} {self.low:g}"] if self.low > -math.inf else []
        above = [f"<= {self.high:g}"] if self.high < math.inf else []
        return " and ".join([*below, *above])

    @property
    def usual(self) -> Scalar:
        """The value of the default where the agents know their problems' moduli."""
        return (
            self.automatic[0] if self.automatic and self.left_open(self.default) else self.default
        )

    def left_open(self, value: Any) -> bool:
        """Whether a value leaves the choice to the library."""
        return self.automatic is not None and value in (0, AUTO)

    def _is_open(self, value: float) -> bool:
        return self.left_open(value) or self.text(value) in self.words

    def is_relative(self, value: Any) -> bool:
        """Whether a value is a path that means another file in another working directory."""
        if self.path is None or not isinstance(value, str) or not value:
            return False
        other = any(
            value.startswith(word) if word.endswith(":") else value == word for word in self.path
        )
        return not other and not Path(value).is_absolute()

    def _check_range(self, value: float) -> None:
        below = value <= self.low if self.open_low else value < self.low
        words = "".join(f"{word} or " for word in self.words)
        if 0 < value < self.floor:
            raise ConfigError(
                f"{self.name} = {value!r}: must be {words or '0 or '}>= {self.floor:g}"
            )
        if math.isnan(value) or below or value > self.high:
            raise ConfigError(
                f"{self.name} = {value!r}: must be {words}{self.bounds or 'a number'}"
            )

    def unused(self, values: Mapping[str, Any], keys: Mapping[str, Key] | None = None) -> str:
        """Return why the key is not used beside these values, empty where it is.

        ``keys`` are the others', of which values are written as their words.
        """
        for other, used in self.needs.items():
            if other not in values:
                continue
            value = values[other]
            if used is None and not value:
                return f"not used without {other}"
            if used is not None and value not in used:
                text = keys[other].text if keys and other in keys else shown
                only = " or ".join(map(text, used))
                return f"not used with {other} = {text(value)}, only with {only}"
        return ""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A key of the whole table: what its owners say of it, by algorithm; "" is every run.

    Attributes
    ----------
    default : bool, int, float or str
        As in ``[tool.flwr.app.config]``, where a key has one default: its owners' own where they
        agree; else 0 or "auto", which stand for each owner's own.
    topic : str
        Heading in lists of keys, as its first owner says.
    """

    name: str
    owners: Mapping[str, Key]

    @property
    def topic(self) -> str:
        return next(iter(self.owners.values())).topic or "Of single algorithms"

    @property
    def default(self) -> Scalar:
        defaults = [key.default for key in self.owners.values()]
        if all(value == defaults[0] for value in defaults):
            return defaults[0]
        return AUTO if isinstance(defaults[0], str) else type(defaults[0])(0)

    @property
    def default_text(self) -> str:
        """The default as lists write it: "auto" where every owner has its own."""
        texts = {key.default_text for key in self.owners.values()}
        return texts.pop() if len(texts) == 1 else AUTO

    @property
    def written_default(self) -> Scalar:
        """The default as apps have it: a word where its owners have one."""
        words = {word for key in self.owners.values() for word in key.words}
        return self.default_text if self.default_text in words else self.default

    def is_default(self, value: Any) -> bool:
        """Whether a value stands for every owner's own default."""
        return value in (self.default, self.default_text)


def setting(
    default: Scalar,
    doc: str,
    *,
    choices: Iterable[str] = (),
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    floor: float = 0.0,
    needs: Mapping[str, Scalar | tuple[Scalar, ...] | None] | None = None,
    words: Mapping[str, Scalar] | None = None,
    automatic: tuple[Scalar, Scalar] | None = None,
    operational: bool = False,
    only_unset: bool = False,
    path: tuple[str, ...] | None = None,
    topic: str = "",
) -> Any:
    """Declare a dataclass field that is a run-config key; the arguments are those of `Key`.

    What an automatic value stands for is added to ``doc``, unless that says so itself.
    """
    if automatic:
        usual, other = map(shown, automatic)
        if usual != other:
            doc = f"{doc}; {AUTO} is {usual}, or {other} where no agent knows its moduli"
        elif AUTO not in doc:
            doc = f"{doc}; {AUTO} is {usual}"
        if not isinstance(default, str):
            words = {AUTO: 0}
    needed = _needs(needs or {})
    choices = choices if isinstance(choices, tuple) else tuple(choices)
    key = Key(
        *("", default, doc, choices, low, high, open_low, floor, needed, words or {}),
        automatic=automatic,
        operational=operational,
        only_unset=only_unset,
        path=path,
        topic=topic,
    )
    return field(default=default, metadata={"key": key})


_KEYS: dict[type, Mapping[str, Key]] = {}


def _needs(
    needs: Mapping[str, Scalar | tuple[Scalar, ...] | None],
) -> dict[str, tuple[Scalar, ...] | None]:
    return {
        other.replace("_", "-"): value if value is None or isinstance(value, tuple) else (value,)
        for other, value in needs.items()
    }


def keys_of(owner: type) -> Mapping[str, Key]:
    """Return the run-config keys that a dataclass declares, by field name.

    A subclass that redeclares a field without `setting` gives it another default, and keeps the
    other properties of the key.
    """
    if owner not in _KEYS:
        _KEYS[owner] = {
            entry.name: replace(key, name=entry.name.replace("_", "-"), default=entry.default)
            for entry in fields(owner)
            if (key := _declared(owner, entry.name)) and entry.default is not MISSING
        }
    return _KEYS[owner]


def _declared(owner: type, name: str) -> Key | None:
    """Return a field as the key that a class or its nearest base declares, with its topic."""
    found = [
        (base, entry.metadata["key"])
        for base in owner.__mro__
        if (entry := getattr(base, "__dataclass_fields__", {}).get(name)) is not None
        and "key" in entry.metadata
    ]
    if not found:
        return None
    key: Key = found[0][1]
    declaring = [base for base, declared in found if declared is key][-1]
    return replace(key, topic=key.topic or vars(declaring).get("topic", ""))


def same(
    owner: type,
    name: str,
    *,
    needs: Mapping[str, Scalar | tuple[Scalar, ...] | None] | None = None,
) -> Any:
    """Declare a dataclass field that is another owner's key: same default, range, meaning.

    ``needs`` replaces the other owner's, where the key needs other keys here.
    """
    entry = next(entry for entry in fields(owner) if entry.name == name)
    if needs is None:
        return field(default=entry.default, metadata=entry.metadata)
    key = replace(entry.metadata["key"], needs=_needs(needs))
    return field(default=entry.default, metadata={"key": key})


def owned(config: Mapping[str, Any], key: Key, kind: type) -> Any:
    """Return the value of a key that a class has (raises ``ConfigError`` where nobody gives it)."""
    if key.name not in config:
        raise ConfigError(
            f"{key.name} of {kind.__module__}.{kind.__name__} is given no value: the Strategy's "
            "settings have to name its owner, and the constructor the key"
        )
    return config[key.name]


def values_of(instance: Any) -> dict[str, Any]:
    """Return the run-config keys of a settings object with their values."""
    return {key.name: getattr(instance, name) for name, key in keys_of(type(instance)).items()}


class Config(dict[str, Any]):
    """Values of run-config keys, each of which has been checked: nobody checks them again."""


def read(owner: type[T], raw: Mapping[str, Any], **others: Any) -> T:
    """Return a settings object with those of its keys that are there, checked, else the defaults.

    Keys of other owners are not looked at, and the values of a `Config` are taken as they are.
    ``others`` are fields that are no keys.

    Raises
    ------
    ConfigError
        If a value does not fit, alone or beside the others; the line names the key.
    """
    keys = {name: key for name, key in keys_of(owner).items() if key.name in raw}
    trusted = isinstance(raw, Config)
    given = {n: raw[k.name] if trusted else k.check(raw[k.name]) for n, k in keys.items()}
    instance = owner.__new__(owner)
    marks = getattr(instance, "__dict__", {})  # none with slots
    marks[_CHECKED] = given.keys()
    instance.__init__(**given, **others)  # type: ignore[misc]
    del marks[_CHECKED]
    return instance


_CHECKED = "_checked"
"""Where `read` says which fields `check_fields` need not look at."""


def check_fields(instance: Any) -> None:
    """Raise ``ConfigError`` unless every key of a settings object is in its type and range.

    For ``__post_init__``: a whole number given for a real one becomes one.
    """
    checked = getattr(instance, _CHECKED, ())
    for name, key in keys_of(type(instance)).items():
        if name in checked:
            continue
        value = getattr(instance, name)
        fitting = key.check(value)
        if type(fitting) is not type(value):
            object.__setattr__(instance, name, fitting)


def settle(instance: Any) -> dict[str, Scalar]:
    """Put what it stands for in the place of every automatic value of a settings object.

    Returns what they stand for where no agent knows its problem's moduli, by key.
    """
    others: dict[str, Scalar] = {}
    for name, key in keys_of(type(instance)).items():
        if key.automatic and key.left_open(getattr(instance, name)):
            usual, others[key.name] = key.automatic
            object.__setattr__(instance, name, usual)
    return others


def shown(value: Any) -> str:
    """Return a value as it is written in a config."""
    return str(value).lower() if isinstance(value, bool) else str(value)


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
