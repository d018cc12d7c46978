# shellcheck shell=bash
# Restarts of the proxy.

proxy_pods() {
    kube --namespace="$PROXY_NAMESPACE" get pods --selector="$1" -o 'jsonpath={range .items[*]}{.metadata.uid}{"\n"}{end}'
}

# are_gone SELECTOR UID...: none of these pods is left.
are_gone() {
    local pods uid
    pods=$(proxy_pods "$1") || return 1
    shift
    for uid in "$@"; do
        ! echo "$pods" | grep -qFx "$uid" || {
            echo "the pod $uid is still there"
            return 1
        }
    done
}

restart_proxies() {
    local selector=$1 before
    before=$(proxy_pods "$selector") || return 1
    [ -n "$before" ] || {
        echo "no pods with $selector"
        return 1
    }
    kube --namespace="$PROXY_NAMESPACE" delete pods --selector="$selector" --wait=false || return 1
    # shellcheck disable=SC2086
    within 180 are_gone "$selector" $before || return 1
    rollout "$PROXY_NAMESPACE" "daemonset/$PROXY_NAME" || return 1
    # The new ones' first sync.
    sleep "$SYNC_SECONDS"
}

check restart "All proxies are deleted and start again under load: no connection is lost" 600
restart() {
    local status=0 selector
    selector=$(proxy_selector) || return 1
    # shellcheck disable=SC2046
    load_start $(load_urls web) || return 1
    restart_proxies "$selector" || status=1
    load_stop || status=1
    return "$status"
}
