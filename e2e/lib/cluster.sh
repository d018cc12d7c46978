# shellcheck shell=bash
# What the run makes in the cluster: a namespace with clients, servers and Services; and what the checks
# ask about them.

# with_images FILE: a manifest with the images of this run.
with_images() {
    sed -e "s|image: e2e-image\$|image: \"$E2E_IMAGE\"|" -e "s|image: proxy-image\$|image: \"$IMAGE\"|" \
        -e "s|timeoutSeconds: 5}|timeoutSeconds: $AFFINITY_SECONDS}|" "$1"
}

# Applies one of the manifests. Nothing is validated by kubectl, here and elsewhere: it would need the
# OpenAPI documents, which not every API server has.
apply() {
    with_images "$ROOT/e2e/manifests/$1.yaml" >"$WORK/$1.yaml" && ours apply --validate=false -f "$WORK/$1.yaml"
}

make_namespace() { kube apply --validate=false -f "$ROOT/e2e/manifests/namespace.yaml"; }

# Deletes the namespace with all that is in it. One that another program has made is left alone.
delete_namespace() {
    local owner
    owner=$(kube get namespace "$NAMESPACE" --ignore-not-found \
        -o 'jsonpath={.metadata.name}{" "}{.metadata.labels.app\.kubernetes\.io/part-of}') || return 1
    case $owner in
        "" | " ") return 0 ;;
        "$NAMESPACE $NAMESPACE") ;;
        *)
            echo "the namespace $NAMESPACE is not of this program" >&2
            return 1
            ;;
    esac
    bounded 240 kube_long delete namespace "$NAMESPACE" --ignore-not-found --timeout=230s
}

make_clients() {
    make_namespace || return 1
    ours create configmap client --from-file=client.sh="$ROOT/e2e/client.sh" || return 1
    apply clients || return 1
    bounded $((ROLLOUT_SECONDS + 10)) rollout "$NAMESPACE" daemonset/node-client || return 1
    clients_of node-client >"$WORK/node-client"
    remember_nodes
}

make_servers() {
    local deployment
    apply servers && apply services || return 1
    apply external || say "the cluster does not take external IPs"
    bounded $((ROLLOUT_SECONDS + 10)) rollout "$NAMESPACE" daemonset/pod-client || return 1
    clients_of pod-client >"$WORK/pod-client"
    for deployment in web one unready scaled; do
        bounded $((ROLLOUT_SECONDS + 10)) rollout "$NAMESPACE" "deployment/$deployment" || return 1
    done
}

# Writes down the nodes that the checks use, with their addresses: NODE ADDRESS...
remember_nodes() {
    local used=" " node addresses
    for node in $(head -n "$MAX_NODES" "$WORK/node-client" | cut -d' ' -f1); do
        used="$used$node "
    done
    kube get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{" "}{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}' |
        while read -r node addresses; do
            case $used in
                *" $node "*) echo "$node $addresses" ;;
            esac
        done >"$WORK/nodes"
    [ -s "$WORK/nodes" ]
}

# clients_of NAME: the pods of a Deployment or DaemonSet, as NODE POD ADDRESS...
clients_of() {
    ours get pods --selector="app=$1" --field-selector=status.phase=Running -o 'jsonpath={range .items[*]}{.spec.nodeName}{" "}{.metadata.name}{" "}{.status.podIPs[*].ip}{"\n"}{end}'
}

nodes() { cut -d' ' -f1 "$WORK/nodes"; }

# pod_on NODE pod-client|node-client: that client on the node.
pod_on() { awk -v node="$1" '$1 == node { print $2; exit }' "$WORK/$2"; }

# A client in the pods' network, and one in the nodes'.
any_pod() { head -n 1 "$WORK/pod-client" | cut -d' ' -f2; }
any_node() { head -n 1 "$WORK/node-client" | cut -d' ' -f2; }

# pods_of NAME: the names of a Deployment's pods.
pods_of() { clients_of "$1" | cut -d' ' -f2; }

# node_of NAME: the node of the only pod.
node_of() { clients_of "$1" | cut -d' ' -f1 | head -n 1; }

# other_node NODE: a different one; nothing if there is none.
other_node() { nodes | grep -vFx "$1" | head -n 1; }

# is_of_family 4|6 ADDRESS
is_of_family() {
    case $2 in
        *:*) [ "$1" = 6 ] ;;
        *) [ "$1" = 4 ] ;;
    esac
}

# node_address NODE [FAMILY]: the node's first address, or its first of that family, if it has one.
node_address() {
    awk -v node="$1" -v family="${2:-}" '$1 == node {
        for (i = 2; i <= NF; i++)
            if (family == "" || (family == 6) == (index($i, ":") > 0)) { print $i; exit }
    }' "$WORK/nodes"
}

# cluster_ips SERVICE
cluster_ips() { ours get service "$1" -o 'jsonpath={.spec.clusterIPs[*]}'; }

# node_port SERVICE NAME-OF-PORT
node_port() { ours get service "$1" -o "jsonpath={.spec.ports[?(@.name==\"$2\")].nodePort}"; }

# url ADDRESS PORT [PATH]
url() {
    case $1 in
        *:*) echo "http://[$1]:$2${3:-/hostname}" ;;
        *) echo "http://$1:$2${3:-/hostname}" ;;
    esac
}

# in_pod POD ARGUMENT...: runs client.sh there.
in_pod() {
    local pod=$1
    shift
    kube_long --namespace="$NAMESPACE" exec "$pod" -- sh /e2e/client.sh "$@"
}

# succeeds POD COUNT URL...: sends so many requests to each, all of which must be answered. Prints the
# answers.
succeeds() {
    local pod=$1 output
    shift
    output=$(in_pod "$pod" get "$@") || return 1
    if [ -z "$output" ] || echo "$output" | grep -qv '^ok '; then
        echo "from $pod, $*: $(echo "$output" | sort | uniq -c | tr -s ' ' | tr '\n' ';')"
        return 1
    fi
    echo "$output"
}

# fails_as RESULTS POD COUNT URL...: every request must end as one of those words, separated by |.
fails_as() {
    local expected=$1 pod=$2 output
    shift 2
    output=$(in_pod "$pod" get "$@") || return 1
    if [ -z "$output" ] || echo "$output" | grep -qvE "^($expected)( |\$)"; then
        echo "from $pod, $*: $(echo "$output" | sort | uniq -c | tr -s ' ' | tr '\n' ';')"
        return 1
    fi
}
