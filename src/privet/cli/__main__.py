"""Entry point of the ``privet`` command and of ``python -m privet.cli``."""

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Load the command and run it."""
    # Until the command is loaded there is nothing to save, and no code that would catch a
    # KeyboardInterrupt. Ignored signals, as under nohup, stay ignored.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, _leave)
    from .main import main as run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        if handled:  # all output is written: another interrupt ends the process silently
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(*_: Any) -> None:
    sys.stderr.write("privet: interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
