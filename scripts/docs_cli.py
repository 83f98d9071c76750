"""A hook of the documentation's build: the ``privet`` command as its own help describes it."""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    # What flwr's own dependencies say of each other at import is no warning of the site.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from typer.cli import get_docs_for_click

    from privet.cli.main import app

PLACE = "<!-- the command line -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where a page asks for them."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """Return every command with its arguments and options."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command)
    for name in command.list_commands(context):
        one = command.get_command(context, name)
        one.short_help = one.help.partition("\n\n")[0]  # in the list too it is not cut
    return get_docs_for_click(obj=command, ctx=context, name="privet", indent=1)
