# shellcheck shell=bash
# Connections that are opened all the time, from a client on each node, while something changes.

# load_start URL...: from the clients in the pods' network.
load_start() {
    local node pod
    : >"$WORK/load"
    for node in $(nodes); do
        pod=$(pod_on "$node" pod-client)
        [ -n "$pod" ] || return 1
        echo "$pod" >>"$WORK/load"
        in_pod "$pod" load-start $((ROLLOUT_SECONDS + 120)) "$@" || return 1
    done
}

# Ends the load, and prints what was lost. Returns 1 if anything was, or if nothing was sent.
load_stop() {
    local pod output total=0 lost=0 counted
    while read -r pod; do
        output=$(in_pod "$pod" load-stop) || output="0 1"
        counted=$(echo "$output" | head -n 1)
        echo "$output" | sed -n "2,\$s/^/lost, from $pod: /p"
        total=$((total + ${counted% *}))
        lost=$((lost + ${counted#* }))
    done <"$WORK/load"
    rm -f "$WORK/load"
    echo "$lost of $total connections lost"
    [ "$lost" = 0 ] && [ "$total" -gt 0 ]
}

# load_urls SERVICE: its cluster IPs.
load_urls() {
    local address
    for address in $(cluster_ips "$1"); do
        url "$address" 80
    done
}
