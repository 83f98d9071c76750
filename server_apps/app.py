"""The Flower ServerApp: reads the run config and runs what it asks for."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from privet.core import PrivetError, analyses
from privet.core.exits import exit_code

from .analysis import execute_analysis
from .config import read_config, without_stand_ins
from .execute import execute

log = logging.getLogger("flwr.privet")


def server_app() -> ServerApp:
    """Return the ServerApp; the algorithm is the run config's ``algorithm``."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            config = read_config(without_stand_ins(context.run_config))
            play = execute_analysis if config["algorithm"] in analyses() else execute
            finished = play(grid, config, str(context.run_id))
            for name, value in finished.headline().items():
                log.info("%s: %s", name, value)
        except PrivetError as error:
            # One line is all a user needs of a failure that this library understands.
            log.error("run failed: %s", error)
            # A failure before the run has a folder leaves no summary: supervise.sh reads it here.
            log.error("the run ends with exit code %d", exit_code(error))
            raise type(error)(str(error)) from None

    return app
