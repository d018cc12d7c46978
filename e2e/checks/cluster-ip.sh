# shellcheck shell=bash
# Cluster IPs.

# from_everywhere URL...: every client in the pods' and the nodes' network gets answers.
from_everywhere() {
    local node client
    for node in $(nodes); do
        for client in pod-client node-client; do
            succeeds "$(pod_on "$node" "$client")" 2 "$@" >"$WORK/answers" || {
                cat "$WORK/answers"
                return 1
            }
        done
    done
}

check cluster-ip-tcp "Pods and nodes reach cluster IPs over TCP, in each family that the cluster has"
cluster_ip_tcp() {
    local urls
    urls=$(load_urls web)
    # shellcheck disable=SC2086
    within "$SETTLE_SECONDS" from_everywhere $urls
}

# udp_from POD ADDRESS PORT
udp_from() {
    local output
    output=$(in_pod "$1" udp "$2" "$3")
    case $output in
        "ok web-"*) ;;
        *)
            echo "from $1, UDP to $2, port $3: $output"
            return 1
            ;;
    esac
}

check cluster-ip-udp "Pods and nodes reach cluster IPs over UDP, in each family that the cluster has"
cluster_ip_udp() {
    local node address
    for address in $(cluster_ips web); do
        for node in $(nodes); do
            within "$SETTLE_SECONDS" udp_from "$(pod_on "$node" pod-client)" "$address" 80 || return 1
            within "$SETTLE_SECONDS" udp_from "$(pod_on "$node" node-client)" "$address" 80 || return 1
        done
    done
}

# served_by SERVICE POD COUNT [ADDRESS]: the names of the servers that answer, each once.
served_by() {
    local output
    output=$(succeeds "$2" "$3" "$(url "${4:-$(cluster_ips "$1" | cut -d' ' -f1)}" 80)") || {
        echo "$output"
        return 1
    }
    echo "$output" | sed 's/^ok //' | sort -u
}

# spreads ADDRESS: all servers of the Service `web` answer.
spreads() {
    local seen expected
    seen=$(served_by web "$(any_pod)" 40 "$1") || {
        echo "$seen"
        return 1
    }
    expected=$(pods_of web | sort -u)
    [ "$seen" = "$expected" ] || {
        echo "of $(echo "$expected" | tr '\n' ' '), only these answered: $(echo "$seen" | tr '\n' ' ')"
        return 1
    }
}

check all-endpoints "New connections to a cluster IP go to all endpoints"
all_endpoints() {
    local address
    for address in $(cluster_ips web); do
        within "$SETTLE_SECONDS" spreads "$address" || return 1
    done
}

check headless "The name of a headless Service leads to its pods, and to the pods' port only"
headless() {
    local pod
    pod=$(any_pod)
    within "$SETTLE_SECONDS" succeeds "$pod" 3 http://headless:8080/hostname || return 1
    fails_as "refused|timeout" "$pod" 1 http://headless:80/hostname
}

check no-endpoints "A Service without endpoints is refused at once, to pods and to nodes"
no_endpoints() {
    local address
    for address in $(cluster_ips nothing); do
        within "$SETTLE_SECONDS" fails_as refused "$(any_pod)" 2 "$(url "$address" 80)" || return 1
        within "$SETTLE_SECONDS" fails_as refused "$(any_node)" 2 \
            "$(url "$address" 80)" || return 1
    done
}

check hairpin "A pod reaches itself through its own Service"
hairpin() {
    local address pod
    pod=$(pods_of one)
    for address in $(cluster_ips one); do
        within "$SETTLE_SECONDS" succeeds "$pod" 3 "$(url "$address" 80)" || return 1
    done
}

check port-change "A new Service is served; its port may change, and the old one is served no more"
port_change() {
    local pod address
    pod=$(any_pod)
    ours delete service moving --ignore-not-found || return 1
    apply moving || return 1
    address=$(cluster_ips moving | cut -d' ' -f1)
    within "$SETTLE_SECONDS" succeeds "$pod" 2 "$(url "$address" 80)" || return 1
    ours patch service moving --type=json \
        --patch='[{"op": "replace", "path": "/spec/ports/0/port", "value": 81}]' || return 1
    within "$SETTLE_SECONDS" succeeds "$pod" 2 "$(url "$address" 81)" || return 1
    within "$SETTLE_SECONDS" fails_as "refused|timeout|failed" "$pod" 1 "$(url "$address" 80)" || return 1
    ours delete service moving
}

check external-ip "Pods reach a Service by its external IPs, in each family that the cluster has"
external_ip() {
    local pod address
    [ -n "$(ours get service external --ignore-not-found -o 'jsonpath={.metadata.name}')" ] || {
        skip "the cluster does not take external IPs"
        return
    }
    pod=$(any_pod)
    for address in $(cluster_ips external); do
        case $address in
            *:*) address=2001:db8:e2e::10 ;;
            *) address=198.51.100.10 ;;
        esac
        within "$SETTLE_SECONDS" succeeds "$pod" 2 "$(url "$address" 80)" || return 1
    done
}
