#!/bin/sh
# Runs a program for arm64 on another machine, emulated, as far as that carries without a packet filter: its
# version, with the page sizes that kernels have; the rules that it renders; and a connection in userspace mode.
#
#   [NATIVE=PROGRAM] deploy/try-emulated.sh PROGRAM
#
# The rendered rules must be those of NATIVE, if given.
set -eu
program=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
pids=
# shellcheck disable=SC2086
trap '[ -z "$pids" ] || kill $pids 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "$1" >&2; cat "$work"/log >&2; exit 1; }
: >"$work/log"

for page in 4096 65536; do
    said=$(qemu-aarch64 -p $page "$program" --version 2>"$work/log") || fail "does not run with pages of $page bytes"
    case $said in
        "switchyard "*) ;;
        *) fail "--version prints $said" ;;
    esac
done

rules() { "$@" render --manifests "$here/../examples" --hostname-override node-1 2>"$work/log"; }
rules qemu-aarch64 "$program" >"$work/rules" || fail "does not render"
grep -q 'table ip kube-proxy' "$work/rules" || fail "renders no table"
if [ -n "${NATIVE:-}" ]; then
    rules "$NATIVE" >"$work/native"
    cmp "$work/rules" "$work/native" || fail "renders other rules than $NATIVE"
fi

mkdir "$work/manifests" "$work/served"
echo "answered" >"$work/served/index.html"
PYTHONUNBUFFERED=1 python3 -m http.server --bind 127.0.0.1 --directory "$work/served" 0 >"$work/server" 2>/dev/null &
pids=$!
# Waits until the last line of a file holds a number after this text, and prints the number.
number() {
    for _ in $(seq 300); do
        found=$(sed -n "s/.*$2\([0-9][0-9]*\).*/\1/p" "$1" | tail -n 1)
        if [ -n "$found" ]; then echo "$found"; return; fi
        sleep 0.1
    done
}
port=$(number "$work/server" ' port ')
cat >"$work/manifests/web.yaml" <<EOF
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: $port, protocol: TCP}]
endpoints: [{addresses: [127.0.0.1]}]
EOF
qemu-aarch64 "$program" --proxy-mode userspace --userspace-capture loopback --manifests "$work/manifests" \
    --hostname-override node-1 --healthz-bind-address 127.0.0.1:10256 >"$work/addresses" 2>"$work/log" &
pids="$pids $!"
port=$(number "$work/addresses" '"address":"127.0.0.1:')
[ -n "$port" ] || fail "printed no address"
[ "$(curl -s --max-time 10 "http://127.0.0.1:$port/")" = answered ] || fail "no answer through userspace mode"
echo "the emulated program runs with pages of 4 and 64 KiB, renders, and proxies in userspace mode"
