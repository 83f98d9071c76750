"""Data sets that the papers add to `privet`, by entry points."""

from __future__ import annotations

from privet.data import DataFormat

from .adult import load_adult
from .femnist import load_femnist

ADULT = DataFormat(
    load_adult, "a folder with adult-train.csv.gz and adult-test.csv.gz, or an hf: table", True
)
FEMNIST = DataFormat(
    load_femnist, "LEAF's folder with train/*.json and test/*.json, or hf:flwrlabs/femnist"
)
