#!/bin/sh
# Submit a run, wait for its end, and end with a status that says what to do next:
#
#     sh supervise.sh APP SUPERLINK RUN.toml [TEXTFILE.prom]
#
#     0  it is complete, was asked to stop, or has spent its target
#     1  it may succeed when it is submitted again
#     2  a person must change something first
#     3  it is over, and its model is of no use
#
# RUN.toml has `resume = "auto"` and an absolute `output-dir` of its own, so that the next run goes on
# where this one was. `exit-code` in the newest summary.json says how a run ended, and the run's log
# where there is none; the exit status of `flwr run` does not. TEXTFILE.prom is for the textfile collector
# of Prometheus' node exporter: it outlives the run, whose own metrics are gone with it.
set -eu
app=$1 superlink=$2 config=$3 textfile=${4:-}

runs=$(sed -n 's/^output-dir *= *"\(.*\)".*/\1/p' "$config")
[ -n "$runs" ] || { echo "$config: output-dir is missing" >&2; exit 2; }

# Write the textfile; without an exit code while the run is under way.
tell() {
    [ -n "$textfile" ] || return 0
    now=$(date +%s)
    last=$(sed -n "s/^privet_supervised_success_timestamp_seconds //p" "$textfile" 2>/dev/null || :)
    [ "${1:-1}" -ne 0 ] || last=$now
    {
        gauge privet_supervised_exit_code "${1:-}" "How the last run ended."
        gauge privet_supervised_end_timestamp_seconds "${1:+$now}" "When the last run ended."
        gauge privet_supervised_success_timestamp_seconds "$last" "When a run last ended with 0."
    } >"$textfile.new"
    mv "$textfile.new" "$textfile"
}

# Print a metric and its help, or nothing where it has no value.
gauge() {
    [ -z "$2" ] || printf '# HELP %s %s\n# TYPE %s gauge\n%s %s\n' "$1" "$3" "$1" "$1" "$2"
}

finish() {
    tell "$1"
    exit "$1"
}

# The file's own time is that of the submission.
log=$(mktemp) begin=$(mktemp)
trap 'rm -f "$log" "$begin"' EXIT
tell
flwr run "$app" "$superlink" --stream --run-config "$config" 2>&1 | tee "$log"
run=$(sed -n 's/.*Successfully started run \([0-9]*\).*/\1/p' "$log" | head -n 1)
if [ -z "$run" ]; then
    echo "the run was not accepted" >&2
    ! grep -q "Invalid run configuration" "$log" || finish 2
    finish 1
fi

# The stream also ends when the SuperLink is restarted, so the status is asked for until there is one.
# A SuperLink that answers and does not know the run has another database than the one it began with.
unknown=0
while :; do
    status=$(flwr ls "$superlink" --run-id "$run" --format json 2>/dev/null |
        sed -n 's/.*"status": *"\([^"]*\)".*/\1/p' | head -n 1)
    case $status in
    finished:*) break ;;
    ?*) unknown=0 ;;
    *) ! flwr ls "$superlink" >/dev/null 2>&1 || unknown=$((unknown + 1)) ;;
    esac
    if [ "$unknown" -ge 5 ]; then
        echo "run $run is unknown to the SuperLink: its database is lost, and the registrations of" \
            "nodes with it; docs/how-to/operate.md, Backup and restore, has the commands" >&2
        finish 2
    fi
    sleep 5
done

# No summary newer than the submission: the run ended before it had a folder, or was killed.
summary=$(find "$runs" -mindepth 2 -maxdepth 2 -name summary.json -newer "$begin" 2>/dev/null |
    xargs -r ls -t | head -n 1)
# Of the run alone: an agent may be called exit-code, and what one says is in the log, after its name.
code=
[ -z "$summary" ] || code=$(sed -n 's/^  "exit-code": *\([0-9]*\).*/\1/p' "$summary" | head -n 1)
[ -n "$code" ] ||
    code=$(sed -n 's/^\([^:]*: *\)\{0,1\}the run ends with exit code \([0-9]*\)$/\2/p' "$log" | tail -n 1)
# A ServerApp that the SuperLink gave up, as after a silence, ends as one that is stopped.
[ "$code" != 0 ] || [ "$status" != finished:failed ] || code=
if [ -z "$code" ]; then
    case $status in
    finished:completed | finished:stopped) code=0 ;;
    *) code=1 ;;
    esac
fi
echo "run $run: $status, exit code $code${summary:+ ($summary)}" >&2
finish "$code"
