"""Trackers of a run: TensorBoard, MLflow, Weights & Biases (``track``).

A tracker is given what the report of the run shows and nothing else: its settings, the figures of
its rounds, tags and notes, the sentence on its privacy, and the files that the run leaves to be
handed on: report, summary and models. So a private run logs nothing that its report would not
show. What the libraries would collect by themselves is switched off: console, host, user, code,
git, installed packages.

A tracker that fails before round 1 refuses the run. One that fails later is left out with a
warning: no run is lost to it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.core import ConfigError
from privet.core.errors import did_you_mean, said_of
from privet.core.files import read_text, write_whole
from privet.core.format import Number
from privet.core.shapes import parsed
from privet.strategies import Observer, Round, Run

from .config import as_written
from .keep_best import BEST_FILE
from .model_file import FILE
from .report.files import PAGE
from .report.runs import SUMMARY, figures

log = logging.getLogger("flwr.privet")

FILES = (PAGE, FILE, BEST_FILE, SUMMARY)
"""The files of a run folder that a tracker is given at the end, where they are there."""
SHOW_BASELINES = (PAGE, SUMMARY)
"""Those of them that show the run's baselines, if it has any."""
IDS = "trackers.json"
"""The file of a run folder with the names that the trackers gave the run."""
PROJECT = "privet"
"""MLflow's experiment and W&B's project where the environment names none."""


def named(text: str) -> tuple[str, ...]:
    """Return the parts of a text such as ``"a, b"``."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


@dataclass(frozen=True, slots=True)
class Described:
    """A run as its trackers see it before round 1; ``known`` is its name of an earlier part."""

    folder: Path
    config: Mapping[str, Any]
    tags: tuple[str, ...]
    notes: str
    known: str = ""

    @property
    def settings(self) -> dict[str, str]:
        """The settings as they are written in a config."""
        return as_written(self.config)


class Tracker(ABC):
    """A run of one tracker, opened with a description before round ``done`` + 1."""

    library: str

    @abstractmethod
    def __init__(self, run: Described, done: int) -> None: ...

    identity: str = ""
    """The name under which the tracker finds the run again."""

    @abstractmethod
    def log(self, round_: int, numbers: Mapping[str, Number]) -> None:
        """Log the figures of a round."""

    @abstractmethod
    def end(self, summary: Mapping[str, Any], files: Iterable[Path]) -> None:
        """Log how the run ended, and its files, and close."""


class TensorBoard(Tracker):
    """Event files in ``tensorboard`` of the run folder.

    They are those of tensorboardX, which writes them without PyTorch and TensorFlow. It stores no
    files: model and report lie beside them.
    """

    library = "tensorboardX"

    def __init__(self, run: Described, done: int) -> None:
        from tensorboardX import SummaryWriter

        self.run, self.identity = run, "tensorboard"
        # What was logged after the checkpoint is read no more. The suffix keeps apart the files of
        # two parts of a run that begin in the same second.
        self.writer = SummaryWriter(
            str(run.folder / self.identity),
            purge_step=done + 1 if run.known else None,
            flush_secs=5,
            filename_suffix=f".{done}",
        )
        lines = [f"    {key} = {value}" for key, value in run.settings.items()]
        for name, text in (
            ("settings", "\n".join(lines)),
            ("tags", ", ".join(run.tags)),
            ("notes", run.notes),
        ):
            if text:
                self.writer.add_text(name, text)

    def log(self, round_: int, numbers: Mapping[str, Number]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round_)

    def end(self, summary: Mapping[str, Any], files: Iterable[Path]) -> None:
        paths = [f"    {path}" for path in files]
        self.writer.add_text("privacy", str(summary["privacy"]))
        self.writer.add_text("files", "\n".join(paths))
        self.writer.close()


class MLflow(Tracker):
    """A run of an MLflow experiment, at ``MLFLOW_TRACKING_URI`` (else ``mlflow.db`` here)."""

    library = "mlflow"

    def __init__(self, run: Described, done: int) -> None:
        from mlflow import MlflowClient

        # Without a tracking URI of the user's, MLflow's own default; the client, other than
        # mlflow.start_run, adds no tags on user, program and commit.
        self.client = MlflowClient()
        if run.known:
            self.identity = run.known
            self.client.update_run(self.identity, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self.client.create_experiment(name)
        tags = {"mlflow.note.content": run.notes} if run.notes else {}
        tags |= dict.fromkeys(run.tags, "true")
        made = self.client.create_run(number, run_name=run.folder.name, tags=tags)
        self.identity = str(made.info.run_id)
        self._log_settings(run.settings)

    def _log_settings(self, settings: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, value) for key, value in settings.items()]
        for first in range(0, len(entries), 100):  # as many as a request may hold
            self.client.log_batch(self.identity, params=entries[first : first + 100])

    def log(self, round_: int, numbers: Mapping[str, Number]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, float(value), now, round_) for name, value in numbers.items()]
        self.client.log_batch(self.identity, metrics=metrics)

    def end(self, summary: Mapping[str, Any], files: Iterable[Path]) -> None:
        self.client.set_tag(self.identity, "privacy", summary["privacy"])
        for path in files:
            self.client.log_artifact(self.identity, str(path))
        status = {"failed": "FAILED", "interrupted": "KILLED"}.get(summary["status"], "FINISHED")
        self.client.set_terminated(self.identity, status)


class WeightsAndBiases(Tracker):
    """A run of a W&B project; ``WANDB_MODE=offline`` keeps it in ``wandb`` of the run folder."""

    library = "wandb"

    def __init__(self, run: Described, done: int) -> None:
        import wandb

        silent = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            host="unnamed",
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            id=run.known or None,
            resume="allow" if run.known else None,
            name=run.folder.name,
            config=dict(run.config),
            tags=run.tags,
            notes=run.notes,
            reinit="create_new",
            settings=silent,
        )
        self.identity = str(self.run.id)

    def log(self, round_: int, numbers: Mapping[str, Number]) -> None:
        self.run.log(dict(numbers), step=round_)

    def end(self, summary: Mapping[str, Any], files: Iterable[Path]) -> None:
        import wandb

        self.run.summary.update({"status": summary["status"], "privacy": summary["privacy"]})
        artefact = wandb.Artifact(f"run-{self.identity}", "run")
        for path in files:
            artefact.add_file(str(path))
        self.run.log_artifact(artefact)
        self.run.finish(exit_code=0 if summary["status"] in ("completed", "stopped") else 1)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def require_trackers(track: str) -> tuple[str, ...]:
    """Return the names of trackers, as ``track`` has them.

    Raises
    ------
    ConfigError
        If one is unknown, or its library is not installed: names the extra.
    """
    names = named(track)
    for name in names:
        if name not in TRACKERS:
            near = did_you_mean(name, TRACKERS)
            raise ConfigError(f"track = {name!r}: choose of {', '.join(TRACKERS)}{near}")
    for name in names:
        library = TRACKERS[name].library
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise ConfigError(
                f"track = {name}: {library} cannot be imported ({error}): "
                f"pip install 'flwr-privet[{name}]'"
            ) from None
    return names


class Tracking(Observer):
    """Logs a run with trackers.

    Parameters
    ----------
    names : iterable of str
        Keys of `TRACKERS`, from `require_trackers`.
    folder : Path
        The run folder.
    config : mapping
        The settings of the run, with its ``tags`` and ``notes``.
    """

    def __init__(self, names: Iterable[str], folder: Path, config: Mapping[str, Any]) -> None:
        self.names, self.folder, self.config = tuple(names), folder, config
        self.open: dict[str, Tracker] = {}

    def on_begin(self, run: Run) -> None:
        """Open the trackers, and log the start, or the rounds before a resume that they lack.

        Raises
        ------
        ConfigError
            If one cannot be opened.
        """
        session = run.session
        known = _read_ids(self.folder) if session.round else {}
        tags, notes = named(self.config.get("tags", "")), self.config.get("notes", "")
        for name in self.names:
            described = Described(self.folder, self.config, tags, notes, known.get(name, ""))
            try:
                self.open[name] = tracker = TRACKERS[name](described, session.round)
                for done in () if described.known else (session.initial, *session.history):
                    tracker.log(done.round, figures(done))
            except Exception as error:
                raise ConfigError(f"track = {name}: cannot begin ({said_of(error)})") from None
        if self.open:
            ids = known | {name: tracker.identity for name, tracker in self.open.items()}
            write_whole(self.folder / IDS, json.dumps(ids).encode())

    def on_round(self, run: Run, done: Round) -> str | None:
        """Log a round."""
        self._each(lambda tracker: tracker.log(done.round, figures(done)))
        return None

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log how the run ended, with its files, and close the trackers."""
        names: tuple[str, ...] = FILES
        if summary["private"] and "baselines" in summary:
            summary = {key: value for key, value in summary.items() if key != "baselines"}
            names = tuple(name for name in FILES if name not in SHOW_BASELINES)
            log.warning(
                "track: %s stay in the run folder, as they show baselines without noise",
                " and ".join(SHOW_BASELINES),
            )
        files = [path for name in names if (path := self.folder / name).exists()]
        self._each(lambda tracker: tracker.end(summary, files))
        self.open.clear()

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.open.items()):
            try:
                action(tracker)
            except Exception as error:
                del self.open[name]
                log.warning("track: the run goes on without %s (%s)", name, said_of(error))


def _read_ids(folder: Path) -> dict[str, str]:
    try:
        ids = parsed(read_text(folder / IDS))
    except (OSError, ValueError):
        return {}
    return ids if isinstance(ids, dict) else {}
