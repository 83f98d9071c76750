#!/bin/sh
# A private run on a SuperLink with TLS and two SuperNodes that prove who they are; the second has a
# privacy budget for life. Everything happens on this machine and in one folder:
#
#     sh examples/deploy_private.sh [FOLDER]      (a new one below /tmp where none is given)
#
# Needs the installed package's commands on PATH, openssl and ssh-keygen. PORT, NODE0_PORT and
# NODE1_PORT are the ports to use. On real machines each part runs where its comment says, with the
# coordinator's name in certificate.conf and in place of 127.0.0.1.
set -eu

app=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
port=${PORT:-9092}
mkdir -p "$folder" && cd "$folder"
folder=$PWD
export FLWR_HOME="$folder/flwr" FLWR_TELEMETRY_ENABLED=0
mkdir -p "$FLWR_HOME"

started=
end() {
    trap - EXIT
    for pid in $started; do kill "$pid" 2>/dev/null || true; done
    wait
}
trap end EXIT
trap 'exit 1' INT TERM

echo "== coordinator: certificates"
cat > certificate.conf <<'CONF'
[req]
distinguished_name = subject
prompt = no
[subject]
CN = localhost
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
subjectAltName = @names
[names]
DNS.1 = localhost
IP.1 = 127.0.0.1
IP.2 = ::1
CONF
openssl genrsa -out ca.key 4096 2>/dev/null
openssl req -new -x509 -key ca.key -sha256 -subj "/C=DE/O=CA" -days 365 -out ca.crt \
    -config certificate.conf -extensions authority
openssl genrsa -out server.key 4096 2>/dev/null
openssl req -new -key server.key -out server.csr -config certificate.conf
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.pem \
    -days 365 -sha256 -extfile certificate.conf -extensions server 2>/dev/null

echo "== coordinator: SuperLink on port $port, and where the flwr command finds it"
flower-superlink --host 127.0.0.1 --port "$port" --disable-runtime-dependency-installation \
    --database state.db --ssl-ca-certfile ca.crt --ssl-certfile server.pem \
    --ssl-keyfile server.key --enable-supernode-auth >superlink.log 2>&1 &
started="$started $!"
cat > "$FLWR_HOME/config.toml" <<CONF
[superlink.hospitals]
address = "127.0.0.1:$port"
root-certificates = "$folder/ca.crt"
CONF
tries=0
until flwr ls hospitals >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || { echo "the SuperLink does not answer: $folder/superlink.log" >&2; exit 1; }
    sleep 1
done

# Each node makes its own key and keeps the private half; the coordinator gets the public one. What
# stands in --node-config is the node operator's own, and no run can change it.
start_node() {
    name=$1 node_port=$2 config=$3
    [ -f "$name" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -f "$name"
    flwr supernode register "$name.pub" hospitals >/dev/null
    flower-supernode --root-certificates ca.crt --superlink "127.0.0.1:$port" \
        --auth-supernode-private-key "$name" --host 127.0.0.1 --port "$node_port" \
        --node-config "$config" >"$name.log" 2>&1 &
    started="$started $!"
}
echo "== nodes: one without rules of its own, one with a lifetime budget of epsilon 10"
start_node node0 "${NODE0_PORT:-9094}" "partition-id=0 num-partitions=2 state-path=\"$folder/state0\""
start_node node1 "${NODE1_PORT:-9095}" "partition-id=1 num-partitions=2 max-epsilon=10.0 \
    delta=1e-5 max-clip=1.0 state-path=\"$folder/state1\" ledger-path=\"$folder/ledger.jsonl\""

echo "== a private run: noise for a total epsilon of 8, which node 1 can afford"
common="num-agents=2 output-dir=\"$folder/runs\""
flwr run "$app" hospitals --stream --run-config "$common num-server-rounds=2 clip=1.0 \
    local-solver=\"noisy-gd\" row-norm=5.0 target-epsilon=8.0"

echo "== the same without noise: node 1 refuses, node 0 trains alone"
flwr run "$app" hospitals --stream --run-config "$common num-server-rounds=1"

flwr ls hospitals
echo "replies that node 1 has paid for: $(wc -l <ledger.jsonl)"
echo "everything is in $folder"
