# shellcheck shell=bash
# The cluster's own Services, and the proxy's health.

# resolves POD udp|tcp SERVER: the cluster's DNS knows the address of the Service `kubernetes`.
resolves() {
    local address type=A output
    address=$(kube --namespace=default get service kubernetes -o 'jsonpath={.spec.clusterIP}')
    is_of_family 4 "$address" || type=AAAA
    output=$(in_pod "$1" dns "$2" "$type" "$3")
    [ "$output" = "$address" ] || {
        echo "DNS over $2 from $3: \"$output\", not $address"
        return 1
    }
}

check dns "The cluster's DNS answers by its Service, over UDP and TCP"
dns() {
    local addresses address node
    addresses=$(kube --namespace=kube-system get services --selector=k8s-app=kube-dns -o 'jsonpath={.items[*].spec.clusterIPs[*]}')
    [ -n "$addresses" ] || {
        skip "there is no Service with the label k8s-app=kube-dns"
        return
    }
    for address in $addresses; do
        [ "$address" != None ] || continue
        for node in $(nodes); do
            within "$SETTLE_SECONDS" resolves "$(pod_on "$node" pod-client)" udp "$address" || return 1
            within "$SETTLE_SECONDS" resolves "$(pod_on "$node" pod-client)" tcp "$address" || return 1
        done
    done
}

# answers POD URL: with any status.
answers() {
    local output
    output=$(in_pod "$1" status "$2")
    case $output in
        [1-5][0-9][0-9]) ;;
        *)
            echo "$2 from $1: $output"
            return 1
            ;;
    esac
}

check api-server "Pods and nodes reach the API server by the Service kubernetes"
api_server() {
    local address port node target
    address=$(kube --namespace=default get service kubernetes -o 'jsonpath={.spec.clusterIP}')
    port=$(kube --namespace=default get service kubernetes -o 'jsonpath={.spec.ports[0].port}')
    target=$(url "$address" "$port" /version)
    target=https${target#http}
    for node in $(nodes); do
        within "$SETTLE_SECONDS" answers "$(pod_on "$node" pod-client)" "$target" || return 1
        within "$SETTLE_SECONDS" answers "$(pod_on "$node" node-client)" "$target" || return 1
    done
}

# is_healthy NODE: on the node's address or, if the proxy listens there only, on localhost.
is_healthy() {
    local pod output
    pod=$(pod_on "$1" node-client)
    output=$(in_pod "$pod" status "$(url "$(node_address "$1")" 10256 /healthz)" \
        http://127.0.0.1:10256/healthz)
    echo "$output" | grep -qFx 200 || {
        echo "/healthz on $1: $(echo "$output" | tr '\n' ' ')"
        return 1
    }
}

check healthz "The proxy of every node answers 200 on /healthz, port 10256"
healthz() {
    local node
    for node in $(nodes); do
        within "$SETTLE_SECONDS" is_healthy "$node" || return 1
    done
}
