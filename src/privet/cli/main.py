"""The ``privet`` command: its sub-commands and what errors look like.

A failure is one line and an exit code (`privet.core.exits`): 2 for wrong usage and all else that a
person must change, 1 where another attempt may do, 3 for a run that is of no use, 130 for an
interrupted command.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from privet.core import ConfigError, PrivetError
from privet.core.exits import Exit, exit_code
from privet.core.plugins import COMMANDS, load_plugin, plugins, where
from privet.core.terminal import styled

from .account import account
from .algorithms import algorithms
from .audit import audit
from .check_node import check_node
from .data import data
from .describe import describe
from .keys import KeysCommand, as_key, completed_value, keys, keys_to_explain, show
from .ledger import ledger
from .new import new
from .pin import pin
from .predict import export, predict
from .report import report, watch
from .run import run
from .statement import statement
from .survival import survival
from .tune import tune

START, CHOOSE, PRIVACY, OTHERS = "Start", "Choose", "Privacy", "Plugins"
"""Headings of the list of commands."""

INSTEAD = {
    **dict.fromkeys(("train", "start", "simulate"), "privet run"),
    "resume": "privet run resume=RUN_DIR",
    "compare": "privet report RUN_DIR RUN_DIR",
    "init": "privet new FOLDER",
}
"""What is written for commands that other programs have."""

log = logging.getLogger("flwr.privet")


class Commands(TyperGroup):
    """The commands of this library, and those of other packages, imported when they are needed.

    An entry point of the group ``privet.commands`` has a function as its object, with arguments and
    options as Typer reads them, and the name of the command as its own.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands; one that cannot be imported is left out, and logged."""
        for name in plugins(COMMANDS):
            try:
                self.get_command(ctx, name)
            except ConfigError as error:
                log.warning("command %s is left out", error)
        return list(self.commands)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command, or nothing.

        Raises
        ------
        ConfigError
            If it is another package's and cannot be imported, or is one of the papers' and they are
            not installed.
        """
        if name not in self.commands and name in plugins(COMMANDS):
            one = typer.Typer(add_completion=False)
            one.command(name, rich_help_panel=OTHERS)(
                _interruptible(load_plugin(COMMANDS, name, FunctionType))
            )
            self.add_command(typer.main.get_command(one), name)
        if name not in self.commands and (said := where(COMMANDS, name)):
            raise ConfigError(said)
        if name not in self.commands:  # one that is like it is looked for among all
            self.list_commands(ctx)
        return super().get_command(ctx, name)


app = typer.Typer(
    name="privet",
    cls=Commands,
    help="Private primal-dual federated learning on Flower.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Interrupted(click.ClickException):
    exit_code = Exit.INTERRUPTED


def _add(
    name: str, function: Callable[..., Any], stopped: str = "", *, panel: str, **options: Any
) -> None:
    """Add a sub-command; ``stopped`` is the message if Ctrl-C ends it."""
    command = _interruptible(function, stopped)
    app.command(name, rich_help_panel=panel, **options)(command)


def _interruptible(function: Callable[..., Any], stopped: str = "") -> Callable[..., Any]:
    """Return a command that Ctrl-C ends with one line."""

    @wraps(function)
    def command(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except KeyboardInterrupt as interrupt:
            message = _advice(interrupt) or "; ".join(filter(None, ("interrupted", stopped)))
            raise _Interrupted(message) from None

    return command


def _advice(interrupt: BaseException | None) -> str:
    """Return the message of the first in a chain of interrupts."""
    return str(interrupt) or _advice(interrupt.__context__) if interrupt else ""


_add("run", run, panel=START, cls=KeysCommand)
_add("data", data, panel=START, cls=KeysCommand)
_add("describe", describe, panel=START, cls=KeysCommand)
_add("survival", survival, panel=START, cls=KeysCommand)
_add("new", new, panel=START)
_add("report", report, panel=START)
_add("predict", predict, panel=START)
_add("export", export, panel=START)
_add("watch", watch, "the run itself goes on", panel=START)
_add("algorithms", algorithms, panel=CHOOSE)
_add("keys", keys, panel=CHOOSE)
_add("tune", tune, "nothing of the search is kept", panel=CHOOSE, cls=KeysCommand)
_add("account", account, panel=PRIVACY, cls=KeysCommand)
_add("check-node", check_node, panel=PRIVACY)
_add("pin", pin, panel=PRIVACY)
_add("statement", statement, panel=PRIVACY)
_add("ledger", ledger, panel=PRIVACY)
_add("audit", audit, "nothing is kept", panel=PRIVACY)


def _version(asked_for: bool) -> None:
    if asked_for:
        from importlib.metadata import version

        from privet.core.library import library_version

        print(f"privet {library_version()} (flwr {version('flwr')})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Private primal-dual federated learning on Flower.

    Begin with privet run; privet run --help lists algorithms, data sets and common keys.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    if not styled():
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None
    try:
        if (values := _bash_values()) is not None:
            print("\n".join(values))
            code = 0
        elif names := keys_to_explain(sys.argv[1:] if arguments is None else arguments):
            show(names)
            code = 0
        else:
            code = app(arguments, standalone_mode=False)
        if code == Exit.INTERRUPTED:  # while the command line was read
            fail("interrupted", code)
    except click.exceptions.NoArgsIsHelpError as problem:
        print(problem.format_message())
        code = 2
    except click.NoSuchOption as problem:
        words = sys.argv[1:] if arguments is None else arguments
        message = as_key(problem.option_name, words) or _without_repeated_hint(
            problem.format_message()
        )
        code = _wrong_usage(problem, message)
    except click.UsageError as problem:
        message = _without_repeated_hint(problem.format_message())
        words = sys.argv[1:] if arguments is None else arguments
        if message.startswith("No such command") and words[0] in INSTEAD:
            message = f"No such command {words[0]!r}: write {INSTEAD[words[0]]}"
        code = _wrong_usage(problem, message)
    except _Interrupted as problem:
        code = fail(problem.message, Exit.INTERRUPTED)
    except PrivetError as problem:
        code = fail(str(problem), exit_code(problem))
    except OSError as problem:
        named = problem.filename and problem.strerror
        text = f"{problem.filename}: {problem.strerror}" if named else str(problem)
        code = fail(text, Exit.RETRY)
    except (KeyboardInterrupt, click.Abort) as interrupt:
        code = fail(_advice(interrupt) or "interrupted", Exit.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _bash_values() -> list[str] | None:
    """Return the values that bash asks for; None where it asks for something else, or nothing."""
    if os.environ.get("_PRIVET_COMPLETE") != "complete_bash":
        return None
    return completed_value(os.environ["COMP_WORDS"], int(os.environ["COMP_CWORD"]))


def _wrong_usage(problem: click.UsageError, message: str) -> int:
    """Print one line on how a command was called, and return the exit code."""
    where = problem.ctx.command_path if problem.ctx else "privet"
    return fail(f"{message.removesuffix('.').removesuffix('?')}; see {where} --help", 2)


def _without_repeated_hint(text: str) -> str:
    """Drop the second of two equal hints: click and typer add one each."""
    head, hint, tail = text.partition(" Did you mean ")
    first = f"{hint}{tail.partition(' Did you mean ')[0]}" if hint else ""
    return f"{head}{first}"


def fail(text: str, code: int) -> int:
    """Print one line to stderr and return the exit code."""
    print(f"privet: {' '.join(text.split())}", file=sys.stderr)
    return code
