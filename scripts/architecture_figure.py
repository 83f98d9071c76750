"""The README's architecture picture: who sends what, where noise and ledger sit; light and dark.

``.venv/bin/python scripts/architecture_figure.py docs/images``
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 436

THEMES = {
    "light": {
        "page": "#ffffff",
        "ink": "#1f2328",
        "soft": "#57606a",
        "line": "#8c959f",
        "site": "#f6f8fa",
        "server": "#ddf4ff",
        "step": "#ffffff",
        "private": "#dafbe1",
        "edge": "#1a7f37",
    },
    "dark": {
        "page": "#0d1117",
        "ink": "#e6edf3",
        "soft": "#9da7b3",
        "line": "#6e7681",
        "site": "#161b22",
        "server": "#0c2d4d",
        "step": "#21262d",
        "private": "#12361f",
        "edge": "#3fb950",
    },
}

STEPS = (
    ("records", "never leave the node", "step"),
    ("rules and ledger", "charged on disk before any work", "private"),
    ("local steps", "Fed-PLT, DP-IADMM, FedPDM, ...", "step"),
    ("noise", "on clipped gradients, as charged", "private"),
)
"""What a node does, in its order: title, note, colour."""


def drawing(theme: dict[str, str]) -> str:
    """Return the picture in one set of colours."""
    parts: list[str] = []

    def box(x: float, y: float, width: float, height: float, fill: str, edge: str) -> None:
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
            f'fill="{theme[fill]}" stroke="{theme[edge]}"/>'
        )

    def text(x: float, y: float, said: str, style: str = "", ink: str = "ink") -> None:
        parts.append(f'<text x="{x}" y="{y}" fill="{theme[ink]}" {style}>{escape(said)}</text>')

    def arrow(x: float, start: float, end: float) -> None:
        parts.append(
            f'<line x1="{x}" y1="{start}" x2="{x}" y2="{end}" stroke="{theme["ink"]}" '
            f'stroke-width="1.5" marker-end="url(#tip)"/>'
        )

    middle, bold, small = 'text-anchor="middle"', 'font-weight="600"', 'font-size="12"'
    box(20, 14, WIDTH - 40, 66, "server", "line")
    text(
        WIDTH / 2, 40, "Coordinator: a Flower ServerApp with a Privet strategy", f"{middle} {bold}"
    )
    said = "combines the updates, mirrors each node's dual, writes history, checkpoint and report"
    text(WIDTH / 2, 62, said, f"{middle} {small}", "soft")
    for number, name in enumerate(("Hospital A", "Hospital B", "Hospital C")):
        left = 20 + number * 267
        arrow(left + 70, 82, 145)
        arrow(left + 176, 148, 85)
        text(left + 62, 119, "model", f'text-anchor="end" {small}')
        text(left + 184, 112, "update", small)
        text(left + 184, 127, "(noisy)", small)
        box(left, 150, 246, 240, "site", "line")
        text(left + 123, 172, f"{name}: Flower ClientApp", f'{middle} {bold} font-size="13.5"')
        for place, (title, note, fill) in enumerate(STEPS):
            top = 184 + place * 50
            box(left + 12, top, 222, 44, fill, "edge" if fill == "private" else "line")
            text(left + 22, top + 18, title, f'{bold} font-size="13"')
            text(left + 22, top + 35, note, 'font-size="11"', "soft")
    said = "Green: at work in private runs. A node's limits are its own; no run can change them."
    text(WIDTH / 2, 418, said, f"{middle} {small}", "soft")
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse">'
        f'<path d="M0 0L10 5L0 10z" fill="{theme["ink"]}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="15" '
        'role="img" aria-label="A coordinator sends the model to three hospitals; each charges '
        'its ledger, trains with clipped gradients, adds noise and sends an update back.">'
    )
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{theme["page"]}"/>'
    return "\n".join([head, tip, ground, *parts, "</svg>", ""])


if __name__ == "__main__":
    for name, theme in THEMES.items():
        Path(sys.argv[1], f"architecture-{name}.svg").write_text(drawing(theme))
