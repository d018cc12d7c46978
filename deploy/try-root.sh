#!/bin/sh
# Runs the program of an unpacked image in its own root file system, in network, mount and process
# its own namespaces; test-image.sh does so for each mode. The programs of this machine must list
# the rules; the rules must stay when the program ends, and disappear with --cleanup.
#
#   deploy/try-root.sh ROOT nftables|iptables-nft|iptables-legacy USER
set -eu
if [ "${TRY_ROOT_INSIDE:-}" != yes ]; then
    TRY_ROOT_INSIDE=yes exec unshare --net --mount --pid --fork --kill-child "$0" "$@"
fi
root=$1 mode=$2 user=$3
log=$(mktemp)
trap 'rm -f "$log"' EXIT
fail() { echo "$mode: $1" >&2; cat "$log" >&2; exit 1; }

# Whether this machine's own programs list the cluster IP among the rules.
programmed() {
    case $mode in
        nftables) nft list table ip kube-proxy 2>/dev/null | grep -qF 10.96.0.10 ;;
        *) "$mode-save" 2>/dev/null | grep -qF 'KUBE-SERVICES -d 10.96.0.10/32' ;;
    esac
}
# Whether any rule of ours exists.
anything() {
    case $mode in
        nftables) nft list tables | grep -q kube-proxy ;;
        *) "$mode-save" 2>/dev/null | grep -q '^:KUBE-SERVICES' ;;
    esac
}
ip link set lo up
ip address add 192.0.2.1/32 dev lo
# As in a container: only the image, /proc and /sys, all read-only except for the host's lock of
# iptables.
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/sys" "$root/manifests" "$root/run"
: >"$root/run/xtables.lock"
cat >"$root/manifests/all.yaml" <<'YAML'
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  ports: [{port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [{addresses: [192.0.2.7], conditions: {ready: true}}]
YAML
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
lock=$(mktemp)
mount --bind "$lock" "$root/run/xtables.lock"
rm -f "$lock"
mount -o remount,ro,bind "$root"
# The programs of the host take the same lock, and not the host's, which other tests hold.
lock=$root/run/xtables.lock
case $mode in
    # The kubelet's chain, which shows the host's flavour.
    iptables-*) XTABLES_LOCKFILE=$lock "$mode" -t mangle -N KUBE-IPTABLES-HINT ;;
    # Rules that kube-proxy left behind.
    nftables)
        iptables-nft -t nat -N KUBE-SERVICES
        # Only root can list the tables of iptables-legacy if its modules are built into the kernel.
        if [ "$user" = 0:0 ]; then XTABLES_LOCKFILE=$lock iptables-legacy -t nat -N KUBE-SERVICES; fi
        ;;
esac
# Whether the rules of kube-proxy still exist.
left_behind() {
    [ "$mode" = nftables ] || return 1
    for flavour in nft legacy; do
        if "iptables-$flavour-save" 2>/dev/null | grep -q '^:KUBE-SERVICES'; then return 0; fi
    done
    return 1
}

set -- chroot --userspec="$user" "$root" /usr/local/bin/kube-proxy --proxy-mode="${mode%%-*}"
"$@" --manifests=/manifests --hostname-override=node-1 --conntrack-max-per-core=0 \
    --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 2>"$log" &
running=$!
tries=0
until programmed && ! left_behind; do
    kill -0 "$running" 2>/dev/null || fail "the program has ended"
    tries=$((tries + 1))
    [ "$tries" -le 300 ] || fail "not as it should be after half a minute"
    sleep 0.1
done
kill "$running"
wait "$running" 2>/dev/null || true
! kill -0 "$running" 2>/dev/null || fail "the program goes on"
programmed || fail "the rules went with the program"
"$@" --cleanup 2>"$log" || fail "cannot clean up"
! anything || fail "rules are left after --cleanup"
echo "$mode, as user ${user%%:*}: programmed, and cleaned up"
