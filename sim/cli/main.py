"""The ``privet`` command: its sub-commands and what errors look like.

Usage errors are one line and exit code 2, failures of a run one line and exit code 1.
"""

from __future__ import annotations

import sys

import click
import typer

from privet.wire import ConfigError, PrivetError

from .account import account
from .bench import bench
from .flower import flower_run
from .keys import asked, show
from .ledger import ledger
from .new import new
from .replay import replay
from .report import report
from .reproduce import reproduce
from .run import run
from .tune import tune

app = typer.Typer(
    name="privet",
    help="Private primal-dual federated learning on Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run)
app.command("replay")(replay)
app.command("tune")(tune)
app.command("bench")(bench)
app.command("report")(report)
app.command("ledger")(ledger)
app.command("reproduce")(reproduce)
app.command("flower-run")(flower_run)
app.command("account")(account)
app.command("new")(new)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    try:
        if names := asked(sys.argv[1:] if arguments is None else arguments):
            show(names)
            code = 0
        else:
            code = app(arguments, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as problem:
        print(problem.format_message())
        code = 2
    except click.UsageError as problem:
        code = fail(problem.format_message(), 2)
    except ConfigError as problem:
        code = fail(str(problem), 2)
    except (PrivetError, OSError) as problem:
        code = fail(str(problem), 1)
    except (KeyboardInterrupt, click.Abort):
        code = fail("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def fail(text: str, code: int) -> int:
    """Print one line to stderr and return the exit code."""
    print(f"privet: {' '.join(text.split())}", file=sys.stderr)
    return code
