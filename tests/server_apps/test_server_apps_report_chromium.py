"""The report as a browser shows it: its numbers, its curves, and nothing wider than a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.server_apps.report import write_report
from privet.sim.inline import run_inline
from support.reports import rounds, run_folder

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

pytestmark = [
    pytest.mark.curves,
    pytest.mark.skipif(
        CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"
    ),
]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
# The page's policy allows its own script alone: the copy that is measured has none. Only a script
# knows the width of the contents.
PROBE = """
<script>addEventListener("load", () => {
  const box = node => { const r = node.getBoundingClientRect();
    return {left: r.left, right: r.right, width: r.width, height: r.height}; };
  const all = (node, query) => [...node.querySelectorAll(query)];
  const seen = {inner: innerWidth, content: document.documentElement.scrollWidth,
    legend: all(document, ".curves > .legend li").map(item => item.innerText),
    cells: {}, figures: {}, outside: [], words: {}};
  for (const cell of all(document, "td[id]")) seen.cells[cell.id] = cell.innerText;
  for (const head of all(document, "th")) {
    const said = [...head.childNodes].find(node => node.nodeType === Node.TEXT_NODE);
    if (!said || !head.checkVisibility()) continue;
    const part = document.createRange();
    for (const word of said.data.matchAll(/[\\p{L}.]+-?/gu)) {
      part.setStart(said, word.index);
      part.setEnd(said, word.index + word[0].length);
      const lines = new Set([...part.getClientRects()].map(line => line.top)).size;
      seen.words[word[0]] = Math.max(lines, seen.words[word[0]] || 0);
    }
  }
  for (const figure of all(document, "figure")) {
    const plot = all(figure, ":scope > svg, .over-round > svg")[0];
    seen.figures[figure.id] = {legend: all(figure, ".legend li").map(item => item.innerText),
      plot: plot ? box(plot) : null,
      text: plot ? all(plot, "text").map(item => item.textContent) : [],
      curves: plot ? all(plot, "path").map(path =>
        ({...box(path), stroke: getComputedStyle(path).stroke})) : []};
  }
  for (const node of all(document, "main *"))
    if (!node.closest(".scroll") && box(node).right > innerWidth + 0.5)
      seen.outside.push(node.tagName);
  const place = document.createElement("pre");
  const smoothing = document.querySelector("#smoothing"), scale = document.querySelector("#scale");
  const ticks = () => all(document, "#figure-loss .over-round .ytick text").map(t => t.textContent);
  const change = (node, value, what) => {
    node.value = value; node.dispatchEvent(new Event(what)); };
  seen.before = ticks();
  change(smoothing, "0.5", "input");
  seen.smooth = document.querySelectorAll("#figure-loss .over-round .smooth").length;
  change(scale, "linear", "change");
  seen.linear = [ticks(), document.querySelector("#figure-loss .over-round .scale").textContent];
  change(scale, "", "change"); change(smoothing, "0", "input");
  seen.after = ticks();
  place.id = "seen"; place.textContent = JSON.stringify(seen); parent.document.body.append(place);
});</script>"""
HEIGHT = 6_000
# The colours of the first runs on a light page.
COLOURS = ("rgb(0, 114, 178)", "rgb(213, 94, 0)", "rgb(0, 158, 115)")
CURVES = ("loss", "accuracy", "stationarity", "bytes", "participants", "failures")


@dataclass(frozen=True)
class Shown:
    """What a window of some width shows of a comparison, and the histories it is of."""

    histories: list[list[dict[str, Any]]]
    page: Path
    windows: dict[int, dict[str, Any]]


def chromium(html: str, width: int, folder: Path, *arguments: str, script: str = "") -> str:
    """Show a page in a frame of that width: Chromium's own window is never below 500 pixels.

    The script is outside the page and its policy, and has the page as ``inside``.
    """
    assert CHROMIUM is not None
    frame, profile = folder / "frame.html", folder / "profile"
    acting = f"""<script>addEventListener("load", () => {{
      const inside = document.querySelector("iframe").contentDocument; {script}}});</script>"""
    frame.write_text(
        f'<!doctype html><meta charset="utf-8"><body style="margin:0"><iframe style="border:0;'
        f'width:{width}px;height:{HEIGHT}px" srcdoc="{escape(html)}"></iframe>{acting}'
    )
    size = f"--window-size={max(width, 500)},{HEIGHT}"
    try:
        return subprocess.run(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", size, *arguments, frame.as_uri()],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        ).stdout
    finally:
        shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Two real runs, one of them private, and one with failures and a name without a space."""
    base = tmp_path_factory.mktemp("report")
    common = {"num-server-rounds": 12, "output-dir": str(base)}
    private = {"local-solver": "noisy-gd", "clip": 1.0, "row-norm": 5.0, "target-epsilon": 8.0}
    half = {"participation": "fraction", "fraction": 0.5}
    folders = [
        run_inline(common, "plain").folder,
        run_inline(common | private | half, "private").folder,
    ]
    history = rounds(30)
    for line in history:
        line["measures"] = {"disagreement": 1.0 / line["round"]}
    for t in (3, 17):
        history[t]["failures"] = {
            f"agent-{t}": {"code": "lost", "text": "no reply within 600 s " + "x" * 80}
        }
    folders.append(run_folder(base / ("long" * 12), history, summary={"path": "/very" * 30}))
    page = write_report(folders, base / "report.html")
    text = page.read_text()
    assert "Content-Security-Policy" in text
    measured = re.sub(r"<meta http-equiv=[^>]*>", "", text).replace("</body>", f"{PROBE}</body>")
    windows = {}
    for width in (390, 1280):
        dom = chromium(measured, width, base, "--dump-dom")
        found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
        assert found, "the probe did not run"
        windows[width] = json.loads(unescape(found[1]))
    histories = [
        [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        for folder in folders
    ]
    return Shown(histories, page, windows)


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(shown: Shown, width: int) -> None:
    window = shown.windows[width]
    assert window["inner"] == width
    assert window["content"] <= width
    assert window["outside"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_words_of_headings_are_whole(shown: Shown, width: int) -> None:
    words = shown.windows[width]["words"]
    assert {"Disagreement", "Stationarity", "residual"} <= set(words)
    assert {word for word, lines in words.items() if lines > 1} <= {"long" * 12}


def test_the_numbers_on_the_screen_are_those_of_the_histories(shown: Shown) -> None:
    cells = shown.windows[390]["cells"]
    for run, history in enumerate(shown.histories):
        last = history[-1]
        assert cells[f"run-{run}-rounds"] == str(len(history))
        assert cells[f"run-{run}-accuracy"] == f"{100 * last['accuracy']:.2f} %"
        assert cells[f"run-{run}-loss"] == f"{last['loss']:#.4g}"
        mantissa, _, exponent = f"{last['stationarity']:#.4g}".partition("e")
        if exponent:
            raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
            mantissa += f" \N{MULTIPLICATION SIGN} 10{raised}"
        assert re.sub(r"\s", " ", cells[f"run-{run}-stationarity"]) == mantissa
        up = sum(line["bytes-up"] for line in history)
        assert cells[f"run-{run}-bytes-up"] == f"{up / 1000:.3g} kB"
        failed = sum(len(line["failures"]) for line in history)
        assert cells[f"run-{run}-failures"] == str(failed)
        agents = sum(len(line["participants"]) for line in history) / len(history)
        assert cells[f"run-{run}-participants"] == f"{agents:.4g}"
    assert "not private" in cells["run-0-epsilon"]
    spent = float(cells["run-1-epsilon"])
    assert 0 <= spent - shown.histories[1][-1]["epsilon"] < 0.01 * spent


@pytest.mark.parametrize("width", [390, 1280])
def test_every_run_has_a_curve_in_its_colour_in_every_figure(shown: Shown, width: int) -> None:
    figures = shown.windows[width]["figures"]
    assert shown.windows[width]["legend"] == ["plain", "private", "long" * 12]
    for key in CURVES:
        figure = figures[f"figure-{key}"]
        plot = figure["plot"]
        assert 250 <= plot["width"] <= width
        assert plot["height"] > 150
        for run, colour in enumerate(COLOURS):
            share = len(shown.histories[run]) / 30
            # The axes are about four fifths of the picture; a swatch or a marker is no curve.
            assert any(
                curve["stroke"] == colour and curve["width"] > 0.6 * share * plot["width"]
                for curve in figure["curves"]
            ), (key, run)
    private = [curve["stroke"] for curve in figures["figure-epsilon"]["curves"]]
    assert COLOURS[1] in private
    assert COLOURS[0] not in private, "its epsilon is infinite"


@pytest.mark.parametrize("width", [390, 1280])
def test_curves_are_smoothed_and_scaled(shown: Shown, width: int) -> None:
    window = shown.windows[width]
    assert window["smooth"] == 3, "a smooth curve for every run"
    ticks, title = window["linear"]
    assert title.strip() == ""
    steps = np.diff([float(tick) for tick in ticks])
    np.testing.assert_allclose(steps, steps[0])
    assert ticks != window["before"], "the losses are drawn on a log scale"
    assert window["after"] == window["before"]


def test_many_runs_sort_by_value_and_filter(tmp_path: Path) -> None:
    """By the page's script, under its policy: largest exact loss first, all but three hidden."""
    losses = [0.1 * (7 * n % 12) + 0.05 for n in range(12)]
    folders = [
        run_folder(tmp_path / f"run-{n}", rounds(1, loss=loss)) for n, loss in enumerate(losses)
    ]
    text = write_report(folders, tmp_path / "report.html").read_text()
    act = """
      const all = query => [...inside.querySelectorAll(query)];
      const loss = all(".sortable button").find(one => one.textContent === "Loss");
      loss.click(); loss.click();
      const rows = all(".sortable tbody tr"), box = inside.querySelector("#filter");
      box.value = "RUN-1 run-"; box.dispatchEvent(new Event("input"));
      const place = document.createElement("pre");
      place.id = "seen"; place.textContent = JSON.stringify({
        order: rows.map(row => Number(row.dataset.run)),
        kept: rows.filter(row => row.checkVisibility()).map(row => Number(row.dataset.run)),
        drawn: all("#figure-bytes .curve").filter(one => one.style.visibility !== "hidden")
          .map(one => one.dataset.run),
        said: inside.querySelector("#shown").textContent.trim()});
      document.body.append(place);"""
    dom = chromium(text, 1280, tmp_path, "--dump-dom", script=act)
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert found, "the script did not run"
    seen = json.loads(unescape(found[1]))
    assert seen["order"] == sorted(range(12), key=lambda n: -losses[n])
    assert set(seen["kept"]) == {1, 10, 11}
    assert set(seen["drawn"]) == {"1", "10", "11"}
    assert seen["said"] == "3 of 12 runs"


def test_the_page_is_painted_as_it_is_measured(shown: Shown) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, which matplotlib brings")
    picture = shown.page.with_name("phone.png")
    chromium(shown.page.read_text(), 390, picture.parent, f"--screenshot={picture}")
    with image.open(picture) as painted:
        assert painted.size == (500, HEIGHT)
        pixels = {c: n for n, c in painted.convert("RGB").getcolors(maxcolors=1 << 24)}
    for colour in COLOURS:
        exact = tuple(map(int, re.findall(r"\d+", colour)))
        # Swatches alone have about 100 pixels of the exact colour in this window.
        assert pixels.get(exact, 0) > 500
