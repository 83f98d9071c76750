"""The ServerApp that ``flwr run`` loads."""

from privet.server_apps import server_app

app = server_app()
