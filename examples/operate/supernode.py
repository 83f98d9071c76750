"""Run a SuperNode, and end the process when its work ends.

    python supernode.py ARGUMENTS OF flower-supernode

A TLS handshake that is cut ends the main thread of flower-supernode, while another thread keeps the
process alive: it does nothing, and nobody starts it again. Here the end of the main thread is the
end of the process, so that `Restart=always` of systemd or of a container works.
"""

import os
import sys
import traceback
from pathlib import Path

from flwr.supernode.cli import flower_supernode

# It starts flower-superexec, which is beside this Python.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
status = 1
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
