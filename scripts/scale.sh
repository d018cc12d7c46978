#!/bin/sh
# Measures the memory and the CPU time that the program takes in nftables mode with generated clusters, in a
# network namespace of its own, with the stand-in for the API server. Needs root.
#
#   scripts/scale.sh [SHAPE ...]
#
# A shape is SERVICESxENDPOINTS. SWITCHYARD names another program to measure, SETTLE the seconds from the first
# sync to the reading. Resident memory contains the program's text, as VmRSS does.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 1000x5 10000x5 50000x2 100000x1
if [ -z "${SCALE_INSIDE:-}" ]; then
    exec env SCALE_INSIDE=1 unshare --net "$0" "$@"
fi
ip link set lo up

work=$(mktemp -d)
processes=
# shellcheck disable=SC2086
trap 'kill $processes 2>/dev/null || true; rm -rf "$work"' EXIT

# Waits, at most two minutes, until a file has a line that matches.
until_found() {
    tries=0
    until grep -q "$1" "$2" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 2400 ] || { echo "in vain: $1" >&2; exit 1; }
        sleep 0.05
    done
}
mib() { awk -v name="$1:" '$1 == name { printf "%.1f", $2 / 1024 }' "/proc/$proxy/status"; }
# User and system time in seconds.
cpu() { awk -v hertz="$(getconf CLK_TCK)" '{ printf "%.2f", ($14 + $15) / hertz }' "/proc/$proxy/stat"; }

printf '%-12s %12s %12s %12s %10s %10s\n' shape 'settled MiB' 'peak MiB' 'of it anon' 'synced s' 'CPU s'
for shape; do
    config=$work/$shape.kubeconfig log=$work/$shape.log
    rm -f "$config" "$log"
    target/release/api-standin "$config" --services "${shape%x*}" --endpoints "${shape#*x}" >"$work/out" &
    server=$! processes=$!
    until_found server: "$config"
    start=$(date +%s.%N)
    "${SWITCHYARD:-target/release/switchyard}" --kubeconfig "$config" --hostname-override node-0 \
        --proxy-mode nftables --v 2 >"$log" 2>&1 &
    proxy=$! processes="$processes $!"
    until_found '"Synced" full=true' "$log"
    synced=$(echo "$start $(date +%s.%N)" | awk '{ printf "%.2f", $2 - $1 }')
    sleep "${SETTLE:-8}"
    printf '%-12s %12s %12s %12s %10s %10s\n' "$shape" "$(mib VmRSS)" "$(mib VmHWM)" "$(mib RssAnon)" "$synced" "$(cpu)"
    kill "$proxy" "$server"
    wait "$proxy" "$server" 2>/dev/null || true
    processes=
    nft flush ruleset
done
