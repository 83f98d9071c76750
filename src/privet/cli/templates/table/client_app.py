"""The ClientApp: reads this node's table and serves whatever algorithm the server asks for."""

from privet.client_apps import client_app
from privet.data import problem_from_context

app = client_app(None, problem_from_context)
