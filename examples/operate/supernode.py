"""Run a SuperNode, and end the process when its work ends.

    python supernode.py ARGUMENTS OF flower-supernode

A TLS handshake that is cut ends the main thread of flower-supernode, while another thread keeps the
process alive: it does nothing, and nobody starts it again. Here the end of the main thread is the
end of the process, so that `Restart=always` of systemd or of a container works. A node with a key
whose clock is off, which a SuperLink refuses, says by how much.
"""

import os
import sys
import time
import traceback
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

from flwr.supernode.cli import flower_supernode

AHEAD, BEHIND = 5, 305
"""Seconds that the clock of a node with a key may be off before its SuperLink refuses it."""


def compare_clocks() -> None:
    """Say by how much this clock is off where the SuperLink refuses a signature.

    Flower's own line does not name the clock; the SuperLink's answer carries its time.
    """
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    intercept = NodeAuthHttpInterceptor.intercept

    def compared(self, context, call_next):
        response = intercept(self, context, call_next)
        sent = response.headers.get("date")
        if response.status_code == 401 and sent:
            # The header has whole seconds.
            off = time.time() - parsedate_to_datetime(sent).timestamp() - 0.5
            if not -BEHIND + 1 < off < AHEAD - 1:
                way = "ahead of" if off > 0 else "behind"
                print(
                    f"this node's clock is {abs(off):.0f} s {way} the SuperLink's, which refuses "
                    f"what is more than {AHEAD} s ahead or {BEHIND} s behind: set it by NTP",
                    file=sys.stderr,
                    flush=True,
                )
        return response

    NodeAuthHttpInterceptor.intercept = compared


# It starts flower-superexec, which is beside this Python.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
status = 1
with suppress(ImportError):  # a Flower of another layout: its own line is left
    compare_clocks()
try:
    flower_supernode()
except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
except BaseException:
    traceback.print_exc()
finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
