#!/bin/sh
# Wait for a SuperLink, at most two minutes, and register the nodes whose public keys are in a folder:
#
#     sh register.sh KEYS SUPERLINK
#
# The SuperLink's database holds the registrations: after its loss this brings them back. A key that is
# registered stays as it is.
set -eu
keys=$1 superlink=$2

tries=0
until flwr ls "$superlink" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { echo "the SuperLink $superlink does not answer" >&2; exit 1; }
    sleep 2
done
failed=0
for key in "$keys"/*.pub; do
    [ -f "$key" ] || { echo "no public key in $keys" >&2; exit 2; }
    if said=$(flwr supernode register "$key" "$superlink" 2>&1); then
        echo "registered $key"
        continue
    fi
    case $said in
    *"already in use"*) ;;
    *) echo "$key is not registered: $said" >&2; failed=1 ;;
    esac
done
exit "$failed"
