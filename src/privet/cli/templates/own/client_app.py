"""The ClientApp: trains on this node's data, with whatever algorithm the server asks for."""

from privet.client_apps import client_app

from .model import problem

app = client_app(None, problem)
