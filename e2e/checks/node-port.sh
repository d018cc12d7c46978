# shellcheck shell=bash
# Node ports: every client in the nodes' network, and one pod, to every node.

# node_port_urls FAMILY PORT: the URL of each node.
node_port_urls() {
    local node address
    for node in $(nodes); do
        address=$(node_address "$node" "$1")
        [ -z "$address" ] || url "$address" "$2"
    done
}

node_port_of_family() {
    local urls node
    cluster_ips web | tr ' ' '\n' | grep -q "$2" || {
        skip "the Service has no IPv$1"
        return
    }
    urls=$(node_port_urls "$1" "$(node_port web http)")
    [ -n "$urls" ] || {
        skip "no node has an IPv$1 address"
        return
    }
    # shellcheck disable=SC2086
    within "$SETTLE_SECONDS" succeeds "$(any_pod)" 1 $urls || return 1
    for node in $(nodes); do
        # shellcheck disable=SC2086
        within "$SETTLE_SECONDS" succeeds "$(pod_on "$node" node-client)" 1 $urls || return 1
    done
}

check node-port-ipv4 "Every node's port is reached from every node, itself too, and from a pod, over IPv4"
node_port_ipv4() { node_port_of_family 4 '[.]'; }

check node-port-ipv6 "The same over IPv6"
node_port_ipv6() { node_port_of_family 6 ':'; }

check node-port-udp "Every node's port is reached over UDP"
node_port_udp() {
    local node address port
    port=$(node_port web udp)
    for node in $(nodes); do
        address=$(node_address "$node")
        within "$SETTLE_SECONDS" udp_from "$(any_node)" "$address" "$port" || return 1
    done
}

check node-port-other-family "The node port of a Service with one family is not served in the other"
node_port_other_family() {
    local ip family other urls pod port
    ip=$(cluster_ips one-family)
    if is_of_family 4 "$ip"; then family=4 other=6; else family=6 other=4; fi
    port=$(node_port one-family http)
    urls=$(node_port_urls "$other" "$port")
    [ -n "$urls" ] || {
        skip "no node has an IPv$other address"
        return
    }
    pod=$(any_node)
    # shellcheck disable=SC2046
    within "$SETTLE_SECONDS" succeeds "$pod" 1 $(node_port_urls "$family" "$port") || return 1
    # shellcheck disable=SC2086
    fails_as "refused|timeout" "$pod" 1 $urls
}
