"""Run folders with made-up histories, and the page a report makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from privet.server_apps.report import write_report

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """The elements of a page; fails when a tag is not closed or an id is used twice."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: dict[str, dict[str, str | None]] = {}
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        name = attributes.get("id")
        if name is not None:
            assert name not in self.ids, f"id {name} is used twice"
            self.ids[name] = attributes
            self.texts[name] = ""
        if tag not in VOID:
            self._open.append((tag, name))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"

    def handle_data(self, data: str) -> None:
        for _, name in self._open:
            if name is not None:
                self.texts[name] += data

    def value(self, run: int, metric: str) -> float | None:
        stored = self.ids[f"run-{run}-{metric}"].get("data-value")
        return None if stored is None else float(stored)

    @property
    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


def rounds(count: int, seed: int = 0, **changes: Any) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    return [
        {
            "round": t,
            "participants": [str(agent) for agent in range(int(draw.integers(3, 9)))],
            "failures": {},
            "notes": [],
            "loss": float(draw.random()),
            "accuracy": float(draw.random()),
            "stationarity": float(10 ** draw.uniform(-8, 2)),
            "residual": None,
            "bytes-up": int(draw.integers(10_000)),
            "bytes-down": int(draw.integers(10_000)),
            "seconds": float(draw.random()),
            "epsilon": 0.1 * t,
            **changes,
        }
        for t in range(1, count + 1)
    ]


def run_folder(path: Path, history: Sequence[dict[str, Any]], **files: Any) -> Path:
    path.mkdir(parents=True)
    (path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def render(*folders: Path) -> Page:
    out = folders[0].parent / "out.html"
    assert write_report(folders, out) == out
    return Page(out.read_text(encoding="utf-8"))
