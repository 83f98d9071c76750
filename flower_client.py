"""The ClientApp that ``flwr run`` loads: serves whatever algorithm the server asks for."""

import gc

from privet.client_apps import client_app
from privet.data import problem_from_context, table_from_context

app = client_app(None, problem_from_context, table_fn=table_from_context)

# A process may answer one message alone, and most often has a full collection in it: that looks at
# all that was imported, none of which can go, and takes longer than the message.
gc.freeze()
