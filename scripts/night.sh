#!/bin/sh
# Usage: night.sh DATA FOLDER [STUDY...]
# The papers' own horizons, after an estimate; interrupted, the same command goes on where it was.
set -eu

data=$1
out=$2
shift 2
. "$(dirname "$0")/processor.sh"
exec .venv/bin/privet reproduce --night "$@" --data-path "$data" --output "$out"
