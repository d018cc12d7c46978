# shellcheck shell=bash
# The proxy of the cluster: what it is before the run, Switchyard in its place, and back.
#
# What is needed to put the cluster back is in $STATE, written before anything is changed:
#   cluster    the UID of the cluster, which is that of its namespace kube-system
#   daemonset  namespace and name of the DaemonSet whose image is swapped
#   spec.json  the DaemonSet's whole spec
#   images     the index of the container, its image, and the image that takes its place
#   container  what the container shares with the clean-up, as members of a JSON object
#   modes      the mode of the original proxy and that of Switchyard, once it runs
#   deploy.yaml, cleanup.yaml  instead of the two: what was applied where there is no such DaemonSet, and
#              the DaemonSet that removes the rules afterwards

cluster_uid() { kube get namespace kube-system -o 'jsonpath={.metadata.uid}'; }

# of_proxy JSONPATH: a part of the DaemonSet.
of_proxy() { kube --namespace="$PROXY_NAMESPACE" get daemonset "$PROXY_NAME" -o "jsonpath=$1"; }

# Whether the DaemonSet is there; any other answer of the API server ends the run.
has_proxy() {
    local found
    found=$(kube --namespace="$PROXY_NAMESPACE" get daemonset "$PROXY_NAME" --ignore-not-found \
        -o 'jsonpath={.metadata.name}') || fail "cannot read the DaemonSet $PROXY_NAMESPACE/$PROXY_NAME"
    [ -n "$found" ]
}

# Prints the index of the proxy's container: the one that is named, or the one that is called kube-proxy,
# or the only one.
container_index() {
    local names name index=0
    names=$(of_proxy '{.spec.template.spec.containers[*].name}') || return 1
    for name in $names; do
        if [ "$name" = "${PROXY_CONTAINER:-kube-proxy}" ]; then
            echo "$index"
            return 0
        fi
        index=$((index + 1))
    done
    if [ "$index" = 1 ] && [ -z "$PROXY_CONTAINER" ]; then
        echo 0
        return 0
    fi
    return 1
}

# Prints the label selector of the DaemonSet's pods, as NAME=VALUE,...
proxy_selector() {
    of_proxy '{.spec.selector.matchLabels}' | tr -d '{}"' | tr ':' '='
}

# rollout NAMESPACE KIND/NAME: waits until every pod is as the object says.
rollout() {
    kube_long --namespace="$1" rollout status "$2" --timeout="${ROLLOUT_SECONDS}s"
}
proxy_rollout() {
    bounded $((ROLLOUT_SECONDS + 10)) rollout "$PROXY_NAMESPACE" "daemonset/$PROXY_NAME"
}

# save_proxy INDEX: writes down the DaemonSet, so that it can be put back whatever happens to this program.
# The last file has the name that says that the others are complete.
save_proxy() {
    mkdir -p "$STATE" || fail "cannot write $STATE"
    cluster_uid >"$STATE/cluster" || fail "cannot read the namespace kube-system"
    echo "$PROXY_NAMESPACE $PROXY_NAME" >"$STATE/daemonset"
    kube --namespace="$PROXY_NAMESPACE" get daemonset "$PROXY_NAME" -o yaml >"$STATE/daemonset.yaml" ||
        fail "cannot read the DaemonSet"
    echo "$1 $(image_of "$1") $IMAGE" >"$STATE/images"
    cleanup_members "$1" >"$STATE/container" || fail "cannot read the DaemonSet"
    of_proxy '{.spec}' >"$STATE/spec.part" || fail "cannot read the DaemonSet"
    grep -q '"template"' "$STATE/spec.part" || fail "kubectl does not print the DaemonSet's spec as JSON"
    mv "$STATE/spec.part" "$STATE/spec.json"
}

# image_of INDEX: the image of a container of the DaemonSet.
image_of() { of_proxy "{.spec.template.spec.containers[$1].image}"; }

patch_proxy() {
    kube --namespace="$PROXY_NAMESPACE" patch daemonset "$PROXY_NAME" --type=json --patch="$1"
}

# Whether the DaemonSet's spec is the saved one, to the byte.
is_as_saved() {
    [ "$(of_proxy '{.spec}')" = "$(cat "$STATE/spec.json")" ] || {
        echo "the DaemonSet is not as in $STATE/spec.json"
        return 1
    }
}

# Puts the image into the DaemonSet. Nothing else changes, except that the nodes must not pull an image
# that was loaded onto them, and that a DaemonSet with `OnDelete` is rolled out, too.
swap_in() {
    local container=/spec/template/spec/containers/$1
    patch_proxy "[
        {\"op\": \"replace\", \"path\": \"$container/image\", \"value\": \"$IMAGE\"},
        {\"op\": \"add\", \"path\": \"$container/imagePullPolicy\", \"value\": \"IfNotPresent\"},
        {\"op\": \"add\", \"path\": \"/spec/updateStrategy/type\", \"value\": \"RollingUpdate\"}
    ]" || return 1
    proxy_rollout
}

# Whether the DaemonSet has the original image or the one that took its place: somebody else has changed
# it otherwise, and what is written down is out of date.
is_known() {
    local index original ours current
    read -r index original ours <"$STATE/images" || return 1
    current=$(image_of "$index") || return 1
    [ "$current" = "$original" ] || [ "$current" = "$ours" ] || {
        echo "the DaemonSet has the image $current, not $ours: delete $STATE if that is as it should be"
        return 1
    }
}

# Whether an image is that of a kube-proxy that would leave nftables tables in force (docs/install.md). In iptables
# mode, Switchyard has none; and kube-proxy in nftables mode takes them over.
leaves_tables() {
    case $(cat "$STATE/modes" 2>/dev/null) in
        *" iptables" | "nftables nftables") return 1 ;;
    esac
    [[ $1 =~ :v1\.(2[0-9]|30)([^0-9]|$) ]]
}

# cleanup_members INDEX: what a container has that its clean-up needs, as members of a JSON object: the configuration
# names the virtual servers that are not Switchyard's, and a file is the lock of iptables-legacy.
cleanup_members() {
    local field value
    for field in command args env envFrom volumeMounts; do
        value=$(of_proxy "{.spec.template.spec.containers[$1].$field}") || return 1
        case $field$value in
            args | "args[]") value='["--cleanup"]' ;;
            args*) value="${value%]}, \"--cleanup\"]" ;;
        esac
        [ -z "$value" ] || echo "\"$field\": $value,"
    done
}

# cleanup_operation SPEC IMAGE: the operation that has the pods of the spec remove Switchyard's rules first.
cleanup_operation() {
    local path=/spec/template/spec/initContainers members container
    members=$(cat "$STATE/container") || return 1
    container="{
        \"name\": \"switchyard-cleanup\", \"image\": \"$2\", \"imagePullPolicy\": \"IfNotPresent\", $members
        \"securityContext\": {\"privileged\": true, \"runAsUser\": 0}}"
    case $1 in
        *'"initContainers":'*) echo "{\"op\": \"add\", \"path\": \"$path/0\", \"value\": $container}" ;;
        *) echo "{\"op\": \"add\", \"path\": \"$path\", \"value\": [$container]}" ;;
    esac
}

# roll_out SPEC [OPERATION]: puts a spec into the DaemonSet, with a change, and waits for its pods. A DaemonSet with
# `OnDelete` would keep Switchyard's pods: its strategy comes last.
roll_out() {
    within "$RESTORE_SECONDS" patch_proxy "[
        {\"op\": \"replace\", \"path\": \"/spec\", \"value\": $1},
        ${2:+$2,}
        {\"op\": \"add\", \"path\": \"/spec/updateStrategy/type\", \"value\": \"RollingUpdate\"}
    ]" && proxy_rollout
}

# Puts the saved spec back, waits for its pods, and compares. May be repeated.
swap_back() {
    local spec original ours operation rolled=0
    read -r PROXY_NAMESPACE PROXY_NAME <"$STATE/daemonset" || return 1
    spec=$(cat "$STATE/spec.json") || return 1
    read -r _ original ours <"$STATE/images" || return 1
    within "$RESTORE_SECONDS" is_known || return 1
    # Where the spec is back, the rules are the original's.
    if leaves_tables "$original" && ! is_as_saved >/dev/null; then
        { operation=$(cleanup_operation "$spec" "$ours") && roll_out "$spec" "$operation"; } || rolled=1
    fi
    roll_out "$spec" || rolled=1
    within "$RESTORE_SECONDS" patch_proxy "[{\"op\": \"replace\", \"path\": \"/spec\", \"value\": $spec}]" ||
        return 1
    within "$RESTORE_SECONDS" is_as_saved || return 1
    return "$rolled"
}

# Prints the objects of deploy/base with the image, the API server and the pods' network.
render_deploy() {
    local file
    for file in rbac config daemonset; do
        echo ---
        sed -e "s|^\( *server: \).*|\1$API_SERVER|" -e "s|^\( *clusterCIDR: \).*|\1\"$CLUSTER_CIDR\"|" \
            -e "s|^\( *image: \)switchyard:latest\$|\1\"$IMAGE\"|" "$ROOT/deploy/base/$file.yaml" || return 1
    done
}

# Writes down what will be applied, and what removes the rules afterwards.
save_deploy() {
    mkdir -p "$STATE" || fail "cannot write $STATE"
    cluster_uid >"$STATE/cluster" || fail "cannot read the namespace kube-system"
    with_images "$ROOT/e2e/manifests/cleanup.yaml" >"$STATE/cleanup.yaml" || return 1
    render_deploy >"$STATE/deploy.part" || return 1
    mv "$STATE/deploy.part" "$STATE/deploy.yaml"
}

apply_deploy() {
    kube apply --validate=false -f "$STATE/deploy.yaml" || return 1
    proxy_rollout
}

# Deletes what was applied, and removes its rules from every node.
remove_deploy() {
    bounded 150 kube_long delete -f "$STATE/deploy.yaml" --ignore-not-found --timeout=140s || return 1
    within "$RESTORE_SECONDS" make_namespace || return 1
    within "$RESTORE_SECONDS" ours apply --validate=false -f "$STATE/cleanup.yaml" || return 1
    bounded $((ROLLOUT_SECONDS + 10)) rollout "$NAMESPACE" daemonset/cleanup
}

# Puts the cluster back as it was, from what was written down. May be repeated.
put_back() {
    local status=0
    if [ -f "$STATE/spec.json" ]; then
        say "putting the DaemonSet $(cat "$STATE/daemonset") back"
        swap_back || status=1
    elif [ -f "$STATE/deploy.yaml" ]; then
        say "removing what was applied, and its rules"
        remove_deploy || status=1
    fi
    say "deleting the namespace $NAMESPACE"
    within "$RESTORE_SECONDS" delete_namespace || status=1
    if [ "$status" = 0 ]; then
        rm -rf "$STATE"
        say "the cluster is as it was"
    else
        echo "e2e: THE CLUSTER IS NOT AS IT WAS. Try again: make e2e-restore KUBECONFIG=$KUBECONFIG" >&2
        echo "e2e: what it was is in $STATE" >&2
    fi
    return "$status"
}

# Whether something on this machine is written down to put back.
has_state() { [ -f "$STATE/spec.json" ] || [ -f "$STATE/deploy.yaml" ]; }

# What is written down must be of this cluster.
check_state() {
    [ "$(cat "$STATE/cluster")" = "$(cluster_uid)" ] ||
        fail "$STATE is of another cluster: restore that first, with its KUBECONFIG"
}
