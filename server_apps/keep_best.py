"""The model of the best round, ``model-best.npz``, beside that of the last, ``model.npz``.

The best round is the first with the largest accuracy, or the smallest of another metric, among all
rounds in which it was measured. The model of a round that is the best so far is written at once,
to a file that bears its number, and its predecessor stays until a checkpoint has the round: a run
that is resumed finds the model that its history names as the best.

Privacy: to choose by ``residual`` is post-processing of the uploads. ``loss`` and ``accuracy`` are
computed from the coordinator's test rows, which are no agent's records: the account of the agents'
records holds for the chosen model as for every other round's, but it says nothing of those rows,
and the file and the report say so. ``stationarity`` is computed from the agents' records without
noise; a private run refuses to choose by it.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from privet.core import ConfigError
from privet.core.errors import one_line
from privet.core.files import read_npz, write_npz
from privet.strategies import Observer, Round, Run

from .model_file import ABOUT, FILE, load_model, write_model

log = logging.getLogger("flwr.privet")

BEST_FILE = "model-best.npz"
NOT_COVERED = (
    "chosen by test rows of the coordinator, without noise: the account covers the agents' "
    "records, not those rows"
)


def require_private_choice(metric: str, *, private: bool) -> None:
    """Refuse a metric that needs the agents' records (raises ``ConfigError``)."""
    if private and metric == "stationarity":
        raise ConfigError(
            "keep-best = stationarity: it is computed from the agents' records without noise, so "
            "the choice would not be private: choose by residual, or by loss or accuracy of test "
            "rows"
        )


class KeepBest(Observer):
    """Keeps the model of the best round in a run folder.

    Parameters
    ----------
    metric : str
        "loss", "accuracy", "stationarity" or "residual".
    folder : Path
        The run folder.
    source : Path, optional
        The run folder, or checkpoint, from which the run is resumed.
    """

    def __init__(self, metric: str, folder: Path, source: Path | None = None) -> None:
        self.metric, self.folder, self.source = metric, folder, source
        self.better = operator.gt if metric == "accuracy" else operator.lt
        self.best: Round | None = None

    def on_begin(self, run: Run) -> None:
        """Find the model of the best of the rounds before a resume."""
        for done in run.session.history:
            if self._improves(done):
                self.best = done
        if self.best is None or self.source is None:
            return
        number = self.best.round
        if arrays := _model(_kept(self.source).get(number)):
            write_npz(self._file(number), arrays)
        elif number == run.session.round:
            self._write(run, number)
        else:
            log.warning(
                "keep-best: the model of round %d, the best so far, is not in %s; the best round "
                "from %d on is kept", number, self.source, run.session.round + 1,
            )  # fmt: skip
            self.best = None
        self._clean(run)

    def on_round(self, run: Run, done: Round) -> str | None:
        """Write the model of a round that is better than all before."""
        if self._improves(done):
            try:
                self._write(run, done.round)
            except OSError as error:  # a full disk ends no round: a later one may be kept
                log.warning(
                    "keep-best: the model of round %d, the best so far, is not kept: %s",
                    *(done.round, one_line(str(error))),
                )
                return None
            self.best = done
        self._clean(run)
        return None

    def finish(self, about: Mapping[str, Any], *, private: bool) -> dict[str, Any]:
        """Write ``model-best.npz`` with its description; return the summary's entry on it.

        The entry is empty where no round was measured. ``about`` is of
        `privet.server_apps.model_file`; the account in it is that of the whole run, which bounds
        that of the rounds up to the best.
        """
        if self.best is None:
            log.warning("keep-best: no round has a %s, so only %s is kept", self.metric, FILE)
            return {}
        kept = {"metric": self.metric, "value": self._value(self.best), "round": self.best.round}
        if private and self.metric != "residual":
            kept["privacy"] = NOT_COVERED
        interim = self._file(self.best.round)
        if not (arrays := _model(interim)):
            log.warning("keep-best: %s cannot be read, so only %s is kept", interim, FILE)
            return {}
        write_model(self.folder / BEST_FILE, arrays, {**about, "kept": kept})
        for file in self.folder.glob(f"{_INTERIM}*.npz"):
            file.unlink()
        return {"file": BEST_FILE, **kept}

    def _value(self, done: Round) -> float:
        return float(getattr(done, self.metric))

    def _improves(self, done: Round) -> bool:
        value = self._value(done)
        if not math.isfinite(value):
            return False
        return self.best is None or bool(self.better(value, self._value(self.best)))

    def _file(self, number: int) -> Path:
        return self.folder / f"{_INTERIM}{number}.npz"

    def _write(self, run: Run, number: int) -> None:
        arrays = {name: array.numpy() for name, array in run.arrays.items()}
        write_npz(self._file(number), arrays)

    def _clean(self, run: Run) -> None:
        """Remove the files of other rounds once the checkpoint has the best one."""
        if self.best is None or run.saved.round < self.best.round:
            return
        for number, file in _interim(self.folder).items():
            if number != self.best.round:
                file.unlink()


_INTERIM = ".best-"


def _model(file: Path | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of a model that was kept; empty where its file is not there or damaged."""
    if file is None:
        return {}
    try:
        arrays = read_npz(file)
    except (OSError, ValueError):
        return {}
    arrays.pop(ABOUT, None)
    return arrays


def _interim(folder: Path) -> dict[int, Path]:
    files = {path.stem.removeprefix(_INTERIM): path for path in folder.glob(f"{_INTERIM}*.npz")}
    return {int(number): path for number, path in files.items() if number.isdecimal()}


def _kept(source: Path) -> dict[int, Path]:
    """Return the models that a run folder has kept, by their rounds."""
    folder = source if source.is_dir() else source.parent
    kept = _interim(folder)
    try:
        number = load_model(folder / BEST_FILE).about["kept"]["round"]
    except (ConfigError, KeyError):
        return kept
    return {number: folder / BEST_FILE, **kept}
