"""The site builds without a warning and loads nothing from other hosts."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from privet.cli.main import app
from privet.core import algorithms
from privet.core.library import library_version
from privet.server_apps.config import defaults
from support.paths import ROOT

NAME = '<code class="name">'
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
REMOTE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_search_works_in_pages_that_are_opened_as_files(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = ")
    for page in ("index.html", "reference/keys.html"):
        assert 'assets/iframe-worker.js"></script>' in (site / page).read_text()


def test_formulas_are_mathml(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    assert not [page.name for page, text in pages.items() if 'class="arithmatex"' in text]
    assert "<math" in pages[site / "fed-plt.html"]


def test_the_command_line_has_every_command(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text()
    commands = [one.name for one in app.registered_commands]
    assert len(commands) >= 10
    for name in commands:
        assert f"privet {name}</code>" in page, name


def test_every_page_is_in_the_navigation_once() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"^ +- .*?([\w/-]+\.md)$", config, re.MULTILINE)
    pages = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(named) == pages


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = [tag for tag in REMOTE.findall(page.read_text()) if 'rel="canonical"' not in tag]
        assert not found, (page.name, found)
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_no_text_is_read_as_a_tag(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = set(re.findall(r"<([a-z][^\s>]*)", page.read_text().partition("<article")[2]))
        assert all(re.fullmatch(r"[a-z]+\d?/?", tag) for tag in found), (page.name, found)
        assert not found & {"unit", "name", "key", "number", "position", "value"}, page.name
    assert "⟨a_i, x⟩" in (site / "reference" / "problems.html").read_text()


def test_headings_skip_no_level(site: Path) -> None:
    for page in site.rglob("*.html"):
        levels = [int(level) for level in re.findall(r"<h(\d) id=", page.read_text())]
        skips = [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1]
        assert not skips, (page.name, skips)


def test_every_part_of_a_docstring_is_read_as_what_it_is(site: Path) -> None:
    for page in (site / "reference").glob("*.html"):
        text = page.read_text()
        assert "<code>Privacy:" not in text, page.name  # in a list of errors
        assert "<blockquote>" not in text, page.name  # an example outside of its section
        assert "=====" not in text, page.name  # a table of another markup


def test_reference_shows_what_the_rooms_export(site: Path) -> None:
    import privet.client_apps
    import privet.problems
    import privet.strategies

    for room in (privet.client_apps, privet.problems, privet.strategies):
        name = room.__name__
        page = (site / "reference" / f"{name.rpartition('.')[2]}.html").read_text()
        for exported in room.__all__:
            thing = getattr(room, exported)
            if not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            # Where a module has the function's name, the function is named in full.
            ids = (f'id="{name}.{exported}"', f'id="{name}.{exported}.{exported}"')
            assert any(identifier in page for identifier in ids), exported


def test_reference_documents_the_arguments_of_strategies(site: Path) -> None:
    page = (site / "reference" / "strategies.html").read_text()
    assert "local step size of the first round" in page
    assert page.count("seconds to wait for the replies of a round") == 1  # of all, and once


def test_pages_say_version_last_change_and_where_to_edit_them(site: Path) -> None:
    page = (site / "faq.html").read_text()
    assert f"Privet {library_version()}" in page
    assert 'href="https://github.com/flwr-privet/flwr-privet/edit/main/docs/faq.md"' in page
    log = ["git", "log", "-1", "--format=%cs", "--", "docs/faq.md"]
    done = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip() or "</html>") in page
    assert ("md-source-file" in page) == bool(done.stdout)


def test_without_a_history_no_page_has_a_day(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "scripts" / "docs_pages.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.last_changes(str(tmp_path)) == {}


def test_snippets_came_in(site: Path) -> None:
    tutorial = (site / "tutorial.html").read_text()
    assert "flower-superlink" in tutorial
    assert "ssh-keygen" in tutorial
    assert "--8&lt;--" not in tutorial
    assert "communication_probability" in (site / "how-to" / "add-an-algorithm.html").read_text()


def test_every_key_is_in_the_table(site: Path) -> None:
    page = (site / "reference" / "keys.html").read_text().replace(NAME, "<code>")
    for name in defaults():
        assert f"><code>{name}</code></td>" in page, name


TYPE = """<script>
addEventListener("load", () => {
  const field = document.querySelector("input.filter");
  field.value = "Clip norm";
  field.dispatchEvent(new Event("input"));
  const seen = (what) =>
    [...document.querySelectorAll(`article ${what}`)].filter((one) => one.offsetHeight);
  const [shown, heads] = [seen("tbody tr"), seen("h2")];
  document.title = shown.map((row) => row.textContent.toLowerCase()).join("|") +
    "#" + heads.length + " of " + document.querySelectorAll("article h2").length;
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_keys_are_filtered_by_words(site: Path, tmp_path: Path) -> None:
    page = site / "reference" / "keys-typed.html"
    page.write_text((site / "reference" / "keys.html").read_text().replace("</body>", TYPE))
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--virtual-time-budget=10000", f"--user-data-dir={tmp_path}", page.as_uri()],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    page.unlink()
    (title,) = re.findall("<title>(.*?)</title>", done.stdout.partition("<body")[0], re.DOTALL)
    rows, _, heads = title.rpartition("#")
    assert rows.count("|") >= 1
    assert all("clip" in row and "norm" in row for row in rows.split("|"))
    shown, of = map(int, heads.split(" of "))
    assert 0 < shown < of


def test_every_algorithm_is_in_the_table_with_what_is_searched(site: Path) -> None:
    page = (site / "reference" / "algorithms.html").read_text().replace(NAME, "<code>")
    for name, algorithm in algorithms().items():
        assert f"><code>{name}</code></td>" in page, name
        for axis in algorithm.load_strategy().search:
            assert f"<code>{axis.key}</code> {axis.low:g} to {axis.high:g}" in page, axis


def test_short_names_in_tables_are_not_broken_at_hyphens(site: Path) -> None:
    page = (site / "choose.html").read_text()
    table = page[page.index("<table>") : page.index("</table>")]
    assert '<code class="name">fed-plt</code>' in table
    assert ".md-typeset table code.name { white-space: nowrap; }" in (
        (site / "assets" / "pages.css").read_text()
    )


def test_numbers_in_tables_are_broken_neither_at_an_exponent_nor_before_an_interval(
    site: Path,
) -> None:
    whole = '<span class="number">{}</span>'
    assert whole.format("2e-14") in (site / "results" / "regression.html").read_text()
    page = (site / "results" / "deep.html").read_text()
    cells = re.findall(r"[\d.]+ ± [\d.]+(?=<)", page.partition("<table>")[2])
    assert len(cells) > 50
    assert page.count(whole.partition("{")[0]) >= len(cells)


def test_every_key_says_what_its_special_default_means(site: Path) -> None:
    """Where auto or an empty text stands for something, or other keys must be given too."""
    page = (site / "reference" / "keys.html").read_text()
    special = {"auto": "auto", "empty": "empty|where"}
    plain = {"tags", "notes"}  # names that are none
    unsaid = []
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        cells = [
            re.sub("<[^>]+>", "", cell).strip()
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        ]
        if len(cells) < 5 or cells[1] not in special or cells[0] in plain:
            continue
        meaning = cells[3]
        if not re.search(special[cells[1]], meaning) and "used with" not in meaning:
            unsaid.append(cells[0])
    assert not unsaid
