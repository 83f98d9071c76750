"""Where the ``privet`` command begins, also as ``python -m privet.cli``."""

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Load the command and run it."""
    # Until the command is loaded there is nothing to be saved, and no place that a
    # KeyboardInterrupt could be caught at. Ignored signals, as under nohup, stay ignored.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from privet.cli.main import main as run

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        if heard:  # all is written and said: one more ends the process without a word
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(*_: Any) -> None:
    sys.stderr.write("privet: interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
