#!/bin/sh
# Submit a run and wait for its end; fail unless it is complete or was asked to stop, so that whoever
# called this calls it again:
#
#     sh supervise.sh APP SUPERLINK RUN.toml
#
# RUN.toml has `resume = "auto"` and an absolute `output-dir` of its own, so that the next run goes on
# where this one was. The exit status of `flwr run` does not say how a run ended; `flwr ls` does. The
# stream also ends when the SuperLink is restarted, so the status is asked for until there is one.
set -eu
app=$1 superlink=$2 config=$3

log=$(mktemp)
trap 'rm -f "$log"' EXIT
flwr run "$app" "$superlink" --stream --run-config "$config" 2>&1 | tee "$log"
run=$(sed -n 's/.*Successfully started run \([0-9]*\).*/\1/p' "$log" | head -n 1)
[ -n "$run" ] || { echo "the run was not accepted" >&2; exit 1; }

while :; do
    status=$(flwr ls "$superlink" --run-id "$run" --format json 2>/dev/null |
        sed -n 's/.*"status": *"\([^"]*\)".*/\1/p' | head -n 1)
    case $status in
    finished:completed | finished:stopped) echo "run $run: $status"; exit 0 ;;
    finished:*) echo "run $run: $status" >&2; exit 1 ;;
    esac
    sleep 5
done
