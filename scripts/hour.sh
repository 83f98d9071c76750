#!/bin/sh
# Usage: hour.sh DATA FOLDER
# What of the committed results takes an hour of two cores: run from a checkout after `make venv`.
# FOLDER gets the results; each file is compared with the committed one.
set -eu

data=$1
out=$2
. "$(dirname "$0")/processor.sh"
mkdir -p "$out"
.venv/bin/privet errata all --json >"$out/errata.jsonl"
.venv/bin/privet reproduce fed-plt dp-iadmm/theorems fedpdm/theorems gfl/theorems --data-path "$data" --output "$out"
cp docs/identities.md "$out/identities.md"
.venv/bin/python -m results.changing_rosters "$out/identities.md"
.venv/bin/python -m results.convergence_figure "$out"
.venv/bin/python scripts/committed.py "$out"
