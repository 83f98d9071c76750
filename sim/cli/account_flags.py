"""The flags of ``privet account``: one table, from which commands and config reading are built."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import click
import typer

Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    `key` is its run-config key where that has another name, `positive` says that 0 in a config
    file means "not given", as it does for run configs, and `zero` that 0 is a value: no noise, an
    infinite epsilon, or no regulariser.
    """

    name: str
    kind: type
    help: str
    choices: tuple[str, ...] = ()
    key: str = ""
    positive: bool = True
    zero: bool = False


_LARGEST = 10**9
_LOSSES = ("logistic", "one-class-logistic", "ridge", "multinomial", "other")
_SYNONYMS = {"binary-logistic": "logistic", "multinomial-logistic": "multinomial"}

FLAGS = {
    flag.name: flag
    for flag in (
        Flag("rounds", int, "Rounds one agent takes part in.", key="num-server-rounds"),
        Flag("local-steps", int, "Local steps of a round (N_e, Q).", key="local-epochs"),
        Flag("local-updates", int, "Inner updates of a round (E).", key="local-epochs"),
        Flag("step-size", float, "Local step size (gamma, eta, mu)."),
        Flag("rho", float, "Penalty of the splitting."),
        Flag("clip", float, "Bound C of an example's gradient (or G, B of a batch's)."),
        Flag("clipping", str, "What is clipped.", ("example", "batch", "none")),
        Flag("num-examples", int, "Public number of examples (q; I of all agents; |D_i|)."),
        Flag("batch-size", int, "Examples of a local batch (b)."),
        Flag("noise-variance", float, "tau^2 of Fed-PLT's (13); of the noise in GFL.", zero=True),
        Flag("noise-scale", float, "Standard deviation (gaussian) or scale b (laplace).",
             zero=True),
        Flag("noise-multiplier", float, "Noise scale divided by the sensitivity."),
        Flag("mechanism", str, "Noise.", ("gaussian", "laplace")),
        Flag("epsilon", float, "Pure epsilon of one laplace release (eps-bar)."),
        Flag("loss", str, "Loss of the agents.", (*_LOSSES, *_SYNONYMS)),
        Flag("regularizer", str, "Regulariser of the agents.", ("none", "l2", "nonconvex")),
        Flag("regularizer-weight", float, "Modulus of the l2 regulariser.", positive=False,
             zero=True),
        Flag("local-solver", str, "Local solver.", ("noisy-gd", "gd", "agd", "sgd")),
        Flag("row-norm", float, "Public norm R that rows are clipped to."),
        Flag("smoothness", float, "Public smoothness, where loss and row-norm do not tell it."),
        Flag("dual", str, "FedPDM's dual.", ("public", "private")),
        Flag("sparsifier", str, "Sparsification of the upload.",
             ("none", "rand-k", "public-top-k", "noisy-top-k", "top-k")),
        Flag("participation", float, "Share K/N that takes part; used as printed only."),
        Flag("contraction", float, "Lipschitz factor of a GFL round, at most 1.", positive=False),
        Flag("participants", int, "Agents of a GFL unit that take part (L)."),
        Flag("observer", str, "Who looks at GFL's messages.", ("neighbour", "own-server")),
        Flag("relation", str, "Neighbouring relation.", ("replace-one", "add-remove")),
        Flag("delta", float, "Delta of the account."),
        Flag("target-epsilon", float, "Total epsilon to solve for."),
        Flag("accountant", str, "Solve by the smaller of RDP and PLD, or by RDP as a veto counts.",
             ("smaller", "rdp")),
    )
}  # fmt: skip

_COMMON = ("rounds", "relation", "delta")
COMMANDS: dict[str, tuple[str, ...]] = {
    "fed-plt": (
        "local-steps", "step-size", "rho", "clip", "num-examples", "noise-variance", "loss",
        "regularizer", "regularizer-weight", "row-norm", "smoothness", "local-solver", *_COMMON,
    ),
    "dp-iadmm": (
        "local-updates", "mechanism", "epsilon", "noise-multiplier", "noise-scale", "clip",
        "num-examples", *_COMMON,
    ),
    "fed-pdm": (
        "local-steps", "step-size", "rho", "clip", "clipping", "batch-size", "num-examples",
        "noise-scale", "noise-multiplier", "loss", "row-norm", "smoothness", "regularizer",
        "regularizer-weight", "dual", "sparsifier", "participation", *_COMMON,
    ),
    "gfl": (
        "step-size", "clip", "mechanism", "noise-scale", "noise-variance", "observer",
        "contraction", "batch-size", "participants", *_COMMON,
    ),
}  # fmt: skip
SOLVED = {"noise-variance", "noise-scale", "noise-multiplier", "epsilon"}


def command(
    algorithm: str, solve: bool, run: Callable[[str, Values, bool], None]
) -> Callable[..., None]:
    """Return a typer command with the algorithm's flags that calls run(algorithm, values, json)."""
    names = list(COMMANDS[algorithm])
    if solve:
        names = [name for name in names if name not in SOLVED] + ["target-epsilon", "accountant"]

    def entry(**given: Any) -> None:
        config, as_json = given.pop("config"), given.pop("as_json")
        values = read_config(config, algorithm, names) if config else {}
        values |= {
            name.replace("_", "-"): value for name, value in given.items() if value is not None
        }
        if values.get("loss") in _SYNONYMS:
            values["loss"] = _SYNONYMS[values["loss"]]
        _check_numbers(values)
        run(algorithm, values, as_json)

    parameters = [_parameter(FLAGS[name]) for name in names]
    parameters += [
        _keyword(
            "config",
            Annotated[Path | None, typer.Option("--config", help="TOML file of run-config keys.")],
            None,
        ),
        _keyword(
            "as_json",
            Annotated[bool, typer.Option("--json", help="One JSON object a line.")],
            False,
        ),
    ]
    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    entry.__annotations__ = {item.name: item.annotation for item in parameters}
    return entry


def read_config(path: Path, algorithm: str, names: list[str]) -> Values:
    """Return the values of the flags `names` that a TOML file gives, under flag or config names.

    The file is a run config, flat or as ``[tool.flwr.app.config]``; what it leaves out has the
    defaults of a run. Keys of runs that say nothing about privacy are checked and ignored.
    """
    import tomllib

    from privet.wire import ConfigError, algorithms, defaults, resolve

    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"--config {path}: {reason}") from None
    raw = raw.get("tool", {}).get("flwr", {}).get("app", {}).get("config", raw)
    if raw.get("algorithm", algorithm) != algorithm:
        raise click.UsageError(f"--config {path}: algorithm is {raw['algorithm']!r}")
    own = {key: value for key, value in raw.items() if key in FLAGS and key not in defaults()}
    known = algorithms().get(algorithm)
    try:
        resolved: Mapping[str, Any] = resolve(
            {key: value for key, value in raw.items() if key not in own},
            algorithm,
            known.keys if known else (),
        )
    except ConfigError as error:
        raise click.UsageError(f"--config {path}: {error}") from None
    values: Values = {}
    for flag in (FLAGS[name] for name in names):
        value = own.get(flag.name, resolved.get(flag.key or flag.name))
        if value is None or (flag.positive and value in (0, "auto", "")):
            continue
        values[flag.name] = _typed(flag, value, path)
    return values


def _typed(flag: Flag, value: Any, path: Path) -> Any:
    wrong = isinstance(value, bool) or not isinstance(
        value, (int, float) if flag.kind is float else flag.kind
    )
    if wrong or (flag.choices and value not in flag.choices):
        expected = ", ".join(flag.choices) or flag.kind.__name__
        raise click.UsageError(f"--config {path}: {flag.name} = {value!r}, expected {expected}")
    return flag.kind(value)


def _check_numbers(values: Values) -> None:
    for name, value in values.items():
        least = ">= 0" if FLAGS[name].zero else "> 0"
        if isinstance(value, float) and not (
            math.isfinite(value) and (value > 0 or (value == 0 and FLAGS[name].zero))
        ):
            raise click.UsageError(f"--{name} {value:g}: expected a finite number {least}")
        if isinstance(value, int) and not 1 <= value <= _LARGEST:
            raise click.UsageError(f"--{name} {value}: expected a number from 1 to {_LARGEST}")


def _parameter(flag: Flag) -> inspect.Parameter:
    kind = click.Choice(flag.choices) if flag.choices else None
    option = typer.Option(f"--{flag.name}", help=flag.help, click_type=kind, show_default=False)
    return _keyword(flag.name.replace("-", "_"), Annotated[flag.kind | None, option], None)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
