"""From a run config to a finished run: build, evaluate, save, report."""

from .app import server_app
from .config import read_config
from .execute import Finished, execute
from .report import write_report

__all__ = ["Finished", "execute", "read_config", "server_app", "write_report"]
