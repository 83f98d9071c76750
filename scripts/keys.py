"""Write the run-config keys where they are repeated: pyproject.toml, and the constructors.

``python scripts/keys.py`` rewrites Flower's block in pyproject.toml, the constructors of the
strategies and the arguments that all of them take; the same module is a hook of the documentation's
build, which puts the table of all keys into the page that asks for it.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    # What flwr's own dependencies say of each other at import is no warning of the site.
    warnings.simplefilter("ignore", DeprecationWarning)
    from privet.cli.key_table import FILE, written
    from privet.cli.keys import by_topic, uses, values
    from privet.cli.new import app_config, commented
    from privet.core import algorithms
    from privet.core.key import ConfigEntry, Key, keys_of
    from privet.rounds.flower.options import OBJECTS
    from privet.rounds.options import RunOptions
    from privet.strategies import PrimalDualStrategy

PLACE = "<!-- the table of run-config keys -->"
FILTER = """\
<input class="filter" type="search" placeholder="A word of a key, its meaning or an algorithm"
 aria-label="Filter the keys" hidden>
<script>
addEventListener("DOMContentLoaded", () => {
  const field = document.querySelector("input.filter");
  const tables = [...document.querySelectorAll("article table")];
  const headed = (table) => {
    let node = table.closest(".md-typeset__scrollwrap") || table;
    while (node && node.tagName !== "H2") node = node.previousElementSibling;
    return node;
  };
  const heads = tables.map(headed);
  field.hidden = false;
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\\s+/);
    tables.forEach((table, place) => {
      const rows = [...table.tBodies[0].rows];
      for (const row of rows) {
        const said = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => said.includes(word));
      }
      table.hidden = rows.every((row) => row.hidden);
      if (heads[place]) heads[place].hidden = table.hidden;
    });
  });
});
</script>

"""
"""Shows the rows with all words of a field; where no script runs there is no field."""
HEADER = "[tool.flwr.app.config]\n"
ARGUMENTS = "src/privet/rounds/flower/arguments.py"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the table where a page asks for it."""
    return markdown.replace(PLACE, FILTER + markdown_table()) if PLACE in markdown else markdown


def markdown_table() -> str:
    """Return the keys as a table for each topic: default, values, meaning and whose it is."""
    tables = (["", f"## {topic}", "", *_table(entries)] for topic, entries in by_topic().items())
    return "\n".join(chain.from_iterable(tables))


def _table(entries: Iterable[ConfigEntry]) -> list[str]:
    rows = ["| key | default | values | meaning | of |", "|---|---|---|---|---|"]
    for entry in entries:
        said: dict[str, list[str]] = {}
        for owner, key in entry.owners.items():
            said.setdefault(_row(key), []).append(owner)
        for text, owners in said.items():
            users = "every run" if owners == [""] else ", ".join(sorted(filter(None, owners)))
            rows.append(f"| `{entry.name}` | {text} | {users} |")
    return rows


def _row(key: Key) -> str:
    default = "empty" if key.default == "" else f"`{key.default_text}`"
    meaning = escape("; ".join((key.doc, *uses(key))), quote=False).replace("|", "\\|")  # norms
    return f"{default} | {values(key)} | {meaning}"


def block() -> str:
    """Return the section of pyproject.toml, header included."""
    return HEADER + commented(app_config())


HEAD = '''"""The constructors of {whose}, written by ``make keys``: do not edit.

An argument is a run-config key: its default and what is said of it are those of the field that
declares it. ``PrimalDualStrategy`` checks what is given. The arguments that all strategies
share are those of `RunArguments`.
"""

from __future__ import annotations

{imports}'''
ENGINE = """\
from privet.rounds.flower.arguments import RunArguments
from privet.rounds.flower.base import PrimalDualStrategy
from privet.rounds.flower.configured import takes_run_arguments
"""
CONSTRUCTORS = {
    "strategies": (
        "the strategies of this folder",
        f"""\
import math
from typing import TYPE_CHECKING, Literal, Unpack

{ENGINE}
if TYPE_CHECKING:
    from privet.problems import ProximalFunction
""",
    ),
    "strategies/gfl": (
        "GFL",
        f"""\
from typing import TYPE_CHECKING, Any, Literal, Unpack

{ENGINE}
if TYPE_CHECKING:
    from privet.kernel import NoiseSource

    from .mixing import Mixer
    from .noise import LinkNoise
""",
    ),
    "strategies/rivals": (
        "the rivals",
        f"""\
from typing import TYPE_CHECKING, Literal, Unpack

{ENGINE}
from .base import RivalStrategy

if TYPE_CHECKING:
    from privet.problems import ProximalFunction
""",
    ),
}
"""Whose constructors a folder's ``constructors.py`` has, and what it imports. Each package has its
own, so that they do not import each other."""
ARGUMENTS_HEAD = '''"""The arguments of all strategies, written by ``make keys``: do not edit.

Those that are run-config keys come from the fields of ``RunOptions``, the others from ``OBJECTS``.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from ..hooks import Monitor
from ..participation import Participation
from .options import Aggregate


class RunArguments(TypedDict, total=False):
    """Arguments that all strategies share, beside those of their algorithms; keywords alone.

    Attributes
    ----------
'''
BASES = ("PrimalDualStrategy", "RivalStrategy")
WIDTH = 100
SHARED = "what every strategy takes: `privet.strategies.RunArguments` says what each is"


def constructors() -> dict[str, str]:
    """Return the modules with the constructors of this library's strategies, by path."""
    own = [entry.load_strategy() for entry in algorithms().values()]
    return {
        f"{folder}/constructors.py": HEAD.format(whose=whose, imports=imports)
        + "".join(_constructor(kind) for kind in own if _folder(kind) == folder)
        for folder, (whose, imports) in CONSTRUCTORS.items()
    }


def run_arguments() -> str:
    """Return the module with the arguments that every strategy takes."""
    keys = keys_of(RunOptions).items()
    said = [_entry(name, _kind(key), key.doc, 4) for name, key in keys]
    said += [
        _entry(name, f"{_plain(kind)}, default {_shown(default)}", doc, 4)
        for name, (kind, default, doc) in OBJECTS.items()
    ]
    types = {name: _annotation(key) for name, key in keys}
    types |= {name: kind for name, (kind, _, _) in OBJECTS.items()}
    fields = [f"    {name}: {kind}" for name, kind in types.items()]
    return ARGUMENTS_HEAD + "\n".join([*said, '    """', "", *fields, ""])


def _plain(annotation: str) -> str:
    """Return an annotation as docstrings write it: the choices of a ``Literal`` in braces."""
    return annotation.replace("Literal[", "{").replace("]", "}")


def _shown(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _folder(kind: type) -> str:
    """Return the folder of a strategy of this library; no folder has those of other packages."""
    return kind.__module__.rpartition(".")[0].removeprefix("privet.").replace(".", "/")


def _constructor(kind: type[PrimalDualStrategy]) -> str:
    keys = kind.argument_keys()
    base = next(each.__name__ for each in kind.__mro__ if each.__name__ in BASES)
    star = ["*"] if keys.keys() - set(kind.positional) else []
    named = [f"{n}: {_annotation(key)} = {_literal(key)}" for n, key in keys.items()]
    places = len(kind.positional)
    named = [*named[:places], *star, *named[places:]]
    named += [f"{name}: {annotation} = None" for name, (annotation, _) in kind.objects.items()]
    passed = [*keys, *kind.objects]
    said = [_entry(name, _kind(key), key.doc) for name, key in keys.items()]
    said += [_entry(n, f"{kind_}, optional", doc) for n, (kind_, doc) in kind.objects.items()]
    said.append(_entry("**arguments", "", SHARED))
    lines = [
        f"\n\nclass {kind.__name__}Arguments({base}):",
        f'    """The arguments of {kind.__name__}."""\n',
        "    @takes_run_arguments",
        "    def __init__(",
        *(f"        {line}," for line in ("self", *named, "**arguments: Unpack[RunArguments]")),
        "    ) -> None:",
        f'        """Take the parameters of {kind.algorithm}.\n',
        "        Parameters",
        "        ----------",
        *said,
        '        """',
        "        super().__init__(",
        *(f"            {name}={name}," for name in passed),
        "            **arguments,",
        "        )\n",
    ]
    return "\n".join(lines)


def _annotation(key: Key) -> str:
    """Return the annotation of a key's argument: its choices where it has some."""
    if key.choices:
        return "Literal[" + ", ".join(f'"{key.text(choice)}"' for choice in key.choices) + "]"
    kind = type(key.default).__name__
    words = ", ".join(f'"{word}"' for word in key.words)
    return f"{kind} | Literal[{words}]" if words else kind


def _literal(key: Key) -> str:
    default = key.written_default
    if isinstance(default, str):
        return f'"{default}"'
    return "math.inf" if default == math.inf else repr(default)


def _kind(key: Key) -> str:
    choices = ", ".join(f'"{key.text(choice)}"' for choice in key.choices)
    return (
        f"{{{choices}}}, default {_literal(key)}"
        if choices
        else re.sub(r"Literal\[(.*)\]", r"\1", _annotation(key)) + f", default {_literal(key)}"
    )


def _entry(name: str, kind: str, doc: str, indent: int = 8) -> str:
    first = textwrap.wrap(
        f"{name} : {kind}" if kind else name,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
    )
    deeper = " " * (indent + 4)
    rest = textwrap.wrap(
        doc, WIDTH, initial_indent=deeper, subsequent_indent=deeper, break_on_hyphens=False
    )
    return "\n".join([*first, *rest])


def main() -> int:
    """Rewrite the section of pyproject.toml, the constructors and their shared arguments."""
    root = Path(__file__).resolve().parent.parent
    path = root / "pyproject.toml"
    text = path.read_text()
    begin = text.index(HEADER)
    end = text.index("\n\n", begin) + 1
    path.write_text(text[:begin] + block() + text[end:])
    for name, module in constructors().items():
        (root / name).write_text(module)
    (root / ARGUMENTS).write_text(run_arguments())
    FILE.write_text(written())
    return 0


if __name__ == "__main__":
    sys.exit(main())
