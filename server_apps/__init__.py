"""From a run config to a finished run: build, evaluate, save, report."""

from .app import server_app
from .config import read_config
from .execute import Finished, execute
from .model_file import Model, load_model
from .own_run import run_and_save
from .progress_bar import progress
from .report import write_report

__all__ = [
    "Finished",
    "Model",
    "execute",
    "load_model",
    "progress",
    "read_config",
    "run_and_save",
    "server_app",
    "write_report",
]
