#!/usr/bin/env bash
# Tries an image of Switchyard on a cluster: in place of kube-proxy, with packets, and back (docs/e2e.md).
#
#   e2e/run.sh run       runs the checks with the original proxy, with Switchyard, and with the original again
#   e2e/run.sh restore   puts the cluster back as it was before a run that was killed
#   e2e/run.sh list      prints the checks
#
# KUBECONFIG, IMAGE and E2E_IMAGE must be set. The cluster is put back whatever happens, except if this
# program is killed with SIGKILL.
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=e2e/lib/run.sh
. "$ROOT/e2e/lib/run.sh"
# shellcheck source=e2e/lib/checks.sh
. "$ROOT/e2e/lib/checks.sh"
# shellcheck source=e2e/lib/cluster.sh
. "$ROOT/e2e/lib/cluster.sh"
# shellcheck source=e2e/lib/load.sh
. "$ROOT/e2e/lib/load.sh"
# shellcheck source=e2e/lib/proxy.sh
. "$ROOT/e2e/lib/proxy.sh"

KUBECTL=${KUBECTL:-kubectl}
KUBECONFIG=${KUBECONFIG:-}
IMAGE=${IMAGE:-}
E2E_IMAGE=${E2E_IMAGE:-}
NAMESPACE=switchyard-e2e
# The DaemonSet of the proxy: NAMESPACE/NAME[/CONTAINER].
IFS=/ read -r PROXY_NAMESPACE PROXY_NAME PROXY_CONTAINER <<<"${E2E_DAEMONSET:-kube-system/kube-proxy}"
# For a cluster without a proxy, where deploy/ is applied.
API_SERVER=${E2E_API_SERVER:-}
CLUSTER_CIDR=${E2E_CLUSTER_CIDR:-}
# At most so many nodes have traffic checked.
MAX_NODES=${E2E_MAX_NODES:-5}
# Limits, in seconds: of a rollout, of attempts to reach the API server while putting back, of a check.
ROLLOUT_SECONDS=${E2E_ROLLOUT_SECONDS:-600}
RESTORE_SECONDS=${E2E_RESTORE_SECONDS:-120}
CHECK_SECONDS=${E2E_CHECK_SECONDS:-180}
# How long a change may take to reach the nodes, and how long to wait between two looks.
SETTLE_SECONDS=${E2E_SETTLE_SECONDS:-40}
POLL=${E2E_POLL:-1}
# How long the first sync of a proxy may take after its pod has started.
SYNC_SECONDS=${E2E_SYNC_SECONDS:-5}
# The timeout of the Service with ClientIP affinity.
AFFINITY_SECONDS=${E2E_AFFINITY_SECONDS:-5}
STATE=${E2E_STATE:-$ROOT/e2e/state}

# shellcheck source=e2e/checks/cluster-ip.sh
. "$ROOT/e2e/checks/cluster-ip.sh"
# shellcheck source=e2e/checks/node-port.sh
. "$ROOT/e2e/checks/node-port.sh"
# shellcheck source=e2e/checks/policies.sh
. "$ROOT/e2e/checks/policies.sh"
# shellcheck source=e2e/checks/affinity.sh
. "$ROOT/e2e/checks/affinity.sh"
# shellcheck source=e2e/checks/endpoints.sh
. "$ROOT/e2e/checks/endpoints.sh"
# shellcheck source=e2e/checks/system.sh
. "$ROOT/e2e/checks/system.sh"
# shellcheck source=e2e/checks/upstream.sh
. "$ROOT/e2e/checks/upstream.sh"
# shellcheck source=e2e/checks/restart.sh
. "$ROOT/e2e/checks/restart.sh"

# Ends the run on a signal; `finish` puts the cluster back.
interrupted() {
    exec >&3 2>&4
    echo "e2e: interrupted by SIG$1" >&2
    exit "$2"
}

# Runs at the end, whatever the reason is.
finish() {
    local status=$?
    trap - EXIT
    # The output may be that of a check, which goes to a file.
    exec >&3 2>&4
    # Nothing may keep the cluster from being put back. All of it has limits.
    trap '' INT TERM HUP
    end_child
    [ -n "$reported" ] || [ -z "$(ls "$RESULTS")" ] || report
    if [ -n "$changing" ]; then
        put_back || status=2
    fi
    rm -rf "$WORK"
    exit "$status"
}

start() {
    [ -n "$KUBECONFIG" ] || fail "KUBECONFIG is not set: make $1 KUBECONFIG=FILE ..."
    export KUBECONFIG
    command -v "$KUBECTL" >/dev/null || fail "$KUBECTL is missing: install kubectl"
    exec 3>&1 4>&2
    WORK=$(mktemp -d)
    RESULTS=$WORK/results
    mkdir "$RESULTS"
    # Set once there may be something to put back.
    changing="" reported=""
    trap finish EXIT
    # A reader of the output that goes away must not end the run.
    trap '' PIPE
    trap 'interrupted INT 130' INT
    trap 'interrupted TERM 143' TERM
    trap 'interrupted HUP 129' HUP
    cluster_uid >/dev/null || fail "cannot reach the cluster of $KUBECONFIG"
}

# Puts back what a run that was killed has left. Returns 1 if that fails.
restore_earlier() {
    if has_state; then
        check_state
        say "an earlier run did not put the cluster back"
        changing=1
        if ! put_back; then
            changing=""
            return 1
        fi
        changing=""
    else
        delete_namespace || return 1
    fi
}

# Finds out what there is to swap, and writes it down. Sets $road to swap or deploy.
prepare() {
    local command
    if has_proxy; then
        road=swap
        index=$(container_index) ||
            fail "which container of $PROXY_NAMESPACE/$PROXY_NAME? Set E2E_DAEMONSET=NAMESPACE/NAME/CONTAINER"
        command=$(of_proxy "{.spec.template.spec.containers[$index].command[0]}")
        case ${command##*/} in
            "" | kube-proxy | switchyard) ;;
            *) fail "the container runs $command, which the image does not have: use deploy/ (docs/install.md)" ;;
        esac
        changing=1
        save_proxy "$index"
    else
        road=deploy
        if [ -z "$API_SERVER" ] || [ -z "$CLUSTER_CIDR" ]; then
            fail "there is no DaemonSet $PROXY_NAMESPACE/$PROXY_NAME: set E2E_DAEMONSET, or E2E_API_SERVER" \
                "and E2E_CLUSTER_CIDR to apply deploy/ to a cluster without a proxy"
        fi
        PROXY_NAMESPACE=kube-system PROXY_NAME=switchyard PROXY_CONTAINER=""
        ! has_proxy || fail "kube-system/switchyard is installed: set E2E_DAEMONSET=kube-system/switchyard"
    fi
}

# On a cluster without a DaemonSet to swap, another proxy may be at work: cluster IPs work then.
require_no_proxy() {
    local pod address
    pod=$(any_node)
    address=$(kube --namespace=default get service kubernetes -o 'jsonpath={.spec.clusterIP}') ||
        fail "cannot read the Service kubernetes"
    bounded 60 in_pod "$pod" status "$(url "$address" 443 /version)" >"$WORK/answer"
    case $(cat "$WORK/answer") in
        timeout | refused) ;;
        *) fail "another proxy is at work on the nodes: end it first, or set E2E_DAEMONSET" ;;
    esac
}

# The mode that the proxies report: for the reader of the output.
say_mode() {
    bounded 60 in_pod "$(any_node)" get 1 http://127.0.0.1:10249/proxyMode >"$WORK/answer" 2>/dev/null
    mode=$(cat "$WORK/answer")
    case $mode in
        ok*) mode=${mode#ok } ;;
        *) mode="unknown" ;;
    esac
    say "the proxy's mode: $mode"
}

# under_load PHASE COMMAND...: does something while connections are opened, and records in the row `swap`
# whether any was lost: as a failure if $judged is set, else as a note.
under_load() {
    local phase=$1 urls text
    shift
    urls=$(load_urls web)
    # shellcheck disable=SC2086
    bounded 120 load_start $urls || return 1
    "$@" || return 1
    sleep "$SYNC_SECONDS"
    if bounded 120 load_stop >"$RESULTS/$phase.swap.log" 2>&1; then
        record "$phase" swap ok
    else
        text=$(tail -n 1 "$RESULTS/$phase.swap.log")
        if [ -n "$judged" ]; then record "$phase" swap FAILED "$text"; else record "$phase" swap noted "$text"; fi
    fi
}

run() {
    local status=0 road="" index="" mode="" before="" judged=1
    start e2e
    check_names
    [ -n "$IMAGE" ] || fail "IMAGE is not set: the image of Switchyard, as the nodes know it"
    [ -n "$E2E_IMAGE" ] || fail "E2E_IMAGE is not set: an agnhost image of Kubernetes' tests (docs/e2e.md)"
    restore_earlier || exit 2
    prepare
    changing=1
    say "making clients and servers in the namespace $NAMESPACE"
    make_clients || fail "the clients do not start"
    if [ "$road" = swap ]; then
        make_servers || fail "the servers do not start"
        say "checking with the original proxy"
        say_mode
        before=$mode
        run_checks original
        # What IPVS forwards ends with it (docs/swap.md).
        [ "$mode" != ipvs ] || judged=""
        say "swapping $IMAGE in"
        under_load switchyard swap_in "$index" || fail "the image does not come up; see the pods' logs"
    else
        require_no_proxy
        save_deploy || fail "cannot render deploy/"
        say "applying deploy/"
        apply_deploy || fail "the image does not come up; see the pods' logs"
        make_servers || fail "the servers do not start"
    fi
    say "checking with Switchyard"
    say_mode
    [ "$road" = deploy ] || echo "$before $mode" >"$STATE/modes"
    run_checks switchyard
    if [ "$road" = swap ]; then
        say "swapping back"
        # From another mode, kube-proxy serves nothing until its first sync (docs/swap.md).
        judged=""
        under_load again swap_back || fail "the original proxy does not come up"
        say "checking with the original proxy again"
        run_checks again
    fi
    reported=1
    report || status=1
    exit "$status"
}

restore() {
    start e2e-restore
    restore_earlier || exit 2
    say "nothing is left to put back"
}

case ${1:-run} in
    run) run ;;
    restore) restore ;;
    list) list_checks ;;
    *) fail "there is no command $1: run, restore or list" ;;
esac
