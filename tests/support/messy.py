"""A table as hospitals send them: whatever can be wrong with one that a key can mend."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np

LABEL = "Ergebnis"
HEADER = f"Fall;Aufnahme;Größe, cm;BMI;Geschlecht;Einheit;Jahr;BMI;Notiz;{LABEL}"


def messy_rows(count: int, seed: int = 0) -> list[str]:
    """Return rows that are separated by semicolons, with decimal commas, and of which the BMI says
    whether somebody is ill."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(count):
        ill = n % 2 == 1
        bmi = f"{rng.normal(30 if ill else 22, 1.5):.1f}".replace(".", ",")
        height = "" if n % 17 == 3 else f"{rng.normal(170, 6):.1f}".replace(".", ",")
        man = unicodedata.normalize("NFD" if n % 3 else "NFC", "männlich")
        cells = [f"{1000 + n}", f"{n % 28 + 1:02d}-Jan-21", height, bmi]
        cells += ["weiblich" if n % 4 < 2 else man, "ICU", "2021", bmi]
        cells += [f"note {n} {'abc'[n % 3]}", "krank" if ill else "gesund"]
        rows.append(";".join(cells))
    return rows


def write_messy(folder: Path, count: int = 120) -> tuple[Path, Path, list[str]]:
    """Write a table to train on and one of six new rows, and return both and the new labels."""
    rows = messy_rows(count)
    for n in (5, 70):
        rows[n] = f"{rows[n].rpartition(';')[0]};"
    empty = ";" * HEADER.count(";")
    lines = ["sep=;", HEADER, *rows[:30], empty, *rows[30:60], empty, *rows[60:]]
    table, new = folder / "messy table.csv", folder / "new.csv"
    table.write_bytes("".join(f"{line}\r\n" for line in lines).encode("utf-8-sig"))
    others = [row.rpartition(";") for row in messy_rows(6, seed=1)]
    head = HEADER.removesuffix(f";{LABEL}")
    new.write_text("\n".join([head, *(row for row, _, _ in others)]) + "\n", encoding="utf-8")
    return table, new, [label for _, _, label in others]
