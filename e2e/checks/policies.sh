# shellcheck shell=bash
# Traffic policies: the Services have one endpoint, so that only one node has a local one.

# two_nodes: sets `here`, the node of the endpoint, and `there`, another; returns 1 if there is no other.
two_nodes() {
    here=$(node_of one)
    there=$(other_node "$here")
    nodes | grep -qFx "$here" && [ -n "$there" ]
}

# source_is ADDRESS POD URL
source_is() {
    local output
    output=$(succeeds "$2" 2 "$3") || {
        echo "$output"
        return 1
    }
    # ADDRESS:PORT or [ADDRESS]:PORT
    output=$(echo "$output" | sed -e 's/^ok //' -e 's/:[0-9]*$//' | tr -d '[]' | sort -u)
    [ "$output" = "$1" ] || {
        echo "$3 from $2: the server sees $output, not $1"
        return 1
    }
}

check external-local "externalTrafficPolicy Local: the endpoint sees the client's own address"
external_local() {
    local here there port family address client
    two_nodes || {
        skip "needs two nodes"
        return
    }
    port=$(node_port external-local http)
    for address in $(cluster_ips external-local); do
        if is_of_family 4 "$address"; then family=4; else family=6; fi
        address=$(node_address "$here" "$family") client=$(node_address "$there" "$family")
        if [ -z "$address" ] || [ -z "$client" ]; then continue; fi
        within "$SETTLE_SECONDS" source_is "$client" "$(pod_on "$there" node-client)" \
            "$(url "$address" "$port" /clientip)" || return 1
    done
}

check external-local-elsewhere "externalTrafficPolicy Local: a node without an endpoint drops what comes from outside"
external_local_elsewhere() {
    local here there address
    two_nodes || {
        skip "needs two nodes"
        return
    }
    address=$(node_address "$there")
    within "$SETTLE_SECONDS" fails_as timeout "$(pod_on "$here" node-client)" 2 \
        "$(url "$address" "$(node_port external-local http)")"
}

# health_status STATUS POD URL
health_status() {
    local output
    output=$(in_pod "$2" status "$3")
    [ "$output" = "$1" ] || {
        echo "$3 from $2: $output, not $1"
        return 1
    }
}

check health-check-node-port "The health check node port is 200 where there is an endpoint, else 503"
health_check_node_port() {
    local here there port pod
    two_nodes || {
        skip "needs two nodes"
        return
    }
    port=$(ours get service external-local -o 'jsonpath={.spec.healthCheckNodePort}')
    pod=$(pod_on "$there" node-client)
    within "$SETTLE_SECONDS" health_status 200 "$pod" "$(url "$(node_address "$here")" "$port" /healthz)" || return 1
    within "$SETTLE_SECONDS" health_status 503 "$pod" "$(url "$(node_address "$there")" "$port" /healthz)"
}

check internal-local "internalTrafficPolicy Local: pods beside the endpoint reach it, others do not"
internal_local() {
    local here there address
    two_nodes || {
        skip "needs two nodes"
        return
    }
    for address in $(cluster_ips internal-local); do
        within "$SETTLE_SECONDS" succeeds "$(pod_on "$here" pod-client)" 2 "$(url "$address" 80)" || return 1
        within "$SETTLE_SECONDS" fails_as "timeout|refused" "$(pod_on "$there" pod-client)" 1 \
            "$(url "$address" 80)" || return 1
    done
}
