#!/usr/bin/env bash
# kubectl in the test of e2e/run.sh: a cluster with one node and one DaemonSet, whose spec is the file `spec` of
# the directory $STUB. `calls` lists the calls, and `namespace` exists while that of the run does.
set -u
all="$*"
printf '%s\n' "$(tr -s '[:space:]' ' ' <<<"$all")" >>"$STUB/calls"
case $all in
    *"get namespace kube-system"*) echo uid ;;
    *"get namespace switchyard-e2e"*) [ ! -e "$STUB/namespace" ] || echo switchyard-e2e switchyard-e2e ;;
    *"delete namespace switchyard-e2e"*) rm -f "$STUB/namespace" ;;
    *"apply "*namespace.yaml*) touch "$STUB/namespace" ;;
    *"get daemonset"*.metadata.name*) echo kube-proxy ;;
    *"get daemonset"*"].image}"*) sed 's/.*"image":"\([^"]*\)".*/\1/' "$STUB/spec" ;;
    *"get daemonset"*"{.spec}"*) cat "$STUB/spec" ;;
    *"get daemonset"*"command[0]}"*) echo kube-proxy ;;
    # A list that its container has, or nothing.
    *"get daemonset"*"containers[0]."*"}"*)
        field=${all##*\].}
        sed -n "s/.*\"${field%\}*}\":\(\[[^]]*\]\).*/\1/p" "$STUB/spec"
        ;;
    # The names of its containers.
    *"get daemonset"*) echo kube-proxy ;;
    *"get pods"*) echo node-1 pod-1 10.244.1.1 ;;
    *"get nodes"*) echo node-1 192.0.2.1 ;;
    *patch*'"path": "/spec"'*)
        [ ! -e "$STUB/away" ] || exit 1
        spec=${all#*\"value\": }
        spec=${spec%%\},$'\n'*}
        printf '%s' "${spec%\}]}" >"$STUB/spec"
        ;;
    *patch*)
        image=${all#*\"value\": \"}
        sed -i "s|\"image\":\"[^\"]*\"|\"image\":\"${image%%\"*}\"|" "$STUB/spec"
        ;;
    *exec*/proxyMode*)
        read -r original ours <"$STUB/modes"
        if grep -q localhost/switchyard "$STUB/spec"; then echo "ok $ours"; else echo "ok $original"; fi
        ;;
    # The answer to every request: the checks pass or fail, and the run goes on.
    *exec*load-stop*) echo 10 0 ;;
    *exec*) echo ok ;;
    # The new pods do not become ready while the test looks on.
    *"rollout status daemonset/kube-proxy"*) while [ -e "$STUB/slow" ]; do sleep 0.1; done ;;
esac
