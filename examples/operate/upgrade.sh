#!/bin/sh
# Upgrade nodes one by one while a run goes on: the next only when the one before is back.
#
#     sh upgrade.sh SUPERLINK VERSION HOST...
#
# Each HOST has supernode.service and /srv/privet/venv, and takes commands by ssh. A version whose changelog names a new
# protocol or message contract is not for this: docs/how-to/operate.md, Upgrade. It ends at the first node that
# is not back within three minutes; the nodes behind it are as they were.
set -eu
superlink=$1 version=$2
shift 2

# How many nodes of a SuperLink are online.
online() {
    flwr supernode list "$superlink" --format json | grep -o '"status": *"online"' | wc -l
}

wanted=$(online)
for host in "$@"; do
    ssh "$host" "/srv/privet/venv/bin/pip install --quiet 'flwr-privet==$version' && sudo systemctl restart supernode"
    tries=0
    sleep 75 # by now the SuperLink has noticed that the old process is gone
    until [ "$(online)" -ge "$wanted" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 21 ] || { echo "$host is not back: journalctl -u supernode there says why" >&2; exit 1; }
        sleep 5
    done
    echo "$host runs $version"
done
