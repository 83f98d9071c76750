"""The ServerApp: runs the algorithm of the run config and writes the run folder with its report."""

from privet.server_apps import server_app

app = server_app()
