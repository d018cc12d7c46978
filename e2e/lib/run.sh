# shellcheck shell=bash
# Messages, and commands with a limit. Every command that may take long runs in a process group of its
# own, so that a signal interrupts the run at once, and the command ends with its children.

say() { echo "e2e: $*"; }
fail() {
    echo "e2e: $*" >&2
    exit 2
}

# The process group of the command that `bounded` runs.
child=""

# bounded SECONDS COMMAND...: the command's status, or 124 after so many seconds.
bounded() {
    local end=$((SECONDS + $1)) status
    shift
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    while kill -0 "$child" 2>/dev/null; do
        if [ "$SECONDS" -ge "$end" ]; then
            end_child
            return 124
        fi
        sleep 0.1
    done
    wait "$child"
    status=$?
    child=""
    return "$status"
}

# Ends what `bounded` runs, if anything.
end_child() {
    [ -n "$child" ] || return 0
    kill -TERM -- "-$child" 2>/dev/null
    sleep 0.2
    kill -KILL -- "-$child" 2>/dev/null
    wait "$child" 2>/dev/null
    child=""
}

# within SECONDS COMMAND...: repeats the command until it succeeds, and prints what its last run printed.
within() {
    local end=$((SECONDS + $1)) output
    shift
    while :; do
        if output=$("$@" 2>&1); then
            [ -z "$output" ] || echo "$output"
            return 0
        fi
        if [ "$SECONDS" -ge "$end" ]; then
            echo "$output"
            return 1
        fi
        sleep "$POLL"
    done
}

# kubectl, which finds the cluster by KUBECONFIG.
kube() { "$KUBECTL" --request-timeout=30s "$@"; }
# What waits, watches or executes has limits of its own.
kube_long() { "$KUBECTL" "$@"; }
# Objects of the run.
ours() { kube --namespace="$NAMESPACE" "$@"; }
