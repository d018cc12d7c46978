#!/bin/sh
# Prints the versions of the kernel and of the programs, and tries what the kernel of the virtual machine must
# be able to do; fails if something is missing. Changes the machine that it runs on: testing/vm/run.sh runs it.
set -u

uname -srvm
awk '/MemTotal/ {print "memory: " int($2 / 1024) " MiB"}' /proc/meminfo
echo "processors: $(nproc)"
nft --version
iptables --version
iptables-legacy --version
ipset --version | head -n 1

missing=0
# Runs the command that shows an ability, and prints whether it succeeds.
can() {
    what=$1
    shift
    if error=$("$@" 2>&1 >/dev/null); then
        echo "can: $what"
    else
        echo "CANNOT: $what: $error"
        missing=1
    fi
}

can "network namespaces" ip netns add ability
can "pairs of links" ip -n ability link add left type veth peer name right
can "bridges" ip -n ability link add bridge0 type bridge
can "dummy devices" ip -n ability link add dummy0 type dummy
can "SCTP sockets" modprobe sctp
can "tables of nf_tables" ip netns exec ability nft add table inet t
can "flowtables" ip netns exec ability \
    nft 'add flowtable inet t f { hook ingress priority 0; devices = { left, right }; }'
can "chains of nat" ip netns exec ability \
    nft 'add chain inet t c { type nat hook prerouting priority 0; }'
can "translation of SCTP" ip netns exec ability nft 'add rule inet t c meta l4proto sctp dnat ip to 10.0.0.1:1'
can "iptables over nf_tables" ip netns exec ability iptables-nft -t nat -N T
can "iptables' own tables" ip netns exec ability iptables-legacy -t nat -N T
can "connection tracking" test -e /proc/sys/net/netfilter/nf_conntrack_max
can "IP sets" ip netns exec ability ipset create ability hash:ip,port,ip
can "virtual servers" modprobe ip_vs
for scheduler in rr wrr lc wlc lblc lblcr sh dh sed nq fo ovf mh; do
    can "scheduler $scheduler" modprobe "ip_vs_$scheduler"
done
head -n 1 /proc/net/ip_vs
exit "$missing"
