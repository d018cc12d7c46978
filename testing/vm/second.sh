#!/bin/sh
# The second program of the virtual machine, after init, in the host's root file system: runs the command,
# and leaves its exit status in /run/vm/status. The file /run/vm/begun shows that the machine has started.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
: >/run/vm/begun
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
mkdir -p "/lib/modules/$(uname -r)"
mount --bind "$(cat /run/vm/modules)/$(uname -r)" "/lib/modules/$(uname -r)"
ip link set lo up
# Lines end as the command ends them.
stty -F /dev/ttyS1 raw -echo

# Loaded at once, as the kernel starts a transaction of nf_tables again for each module that it misses, and
# loads the earlier ones again, too: more than 20 s for the first Service where the machine is emulated. And
# br_netfilter, which rules with xt_physdev load, changes what becomes of bridged packets: better before tests
# than amid them.
modprobe --all --quiet bridge veth dummy macvlan sctp nf_conntrack nf_conntrack_netlink \
    nf_tables nft_chain_nat nft_compat nft_ct nft_fib_inet nft_fib_ipv4 nft_fib_ipv6 nft_flow_offload nft_hash \
    nft_limit nft_log nft_masq nft_nat nft_numgen nft_redir nft_reject_inet nft_reject_ipv4 nft_reject_ipv6 \
    iptable_filter iptable_mangle iptable_nat ip6table_filter ip6table_mangle ip6table_nat \
    xt_addrtype xt_comment xt_conntrack xt_mark xt_MASQUERADE xt_nat xt_recent xt_set xt_statistic xt_tcpudp \
    br_netfilter xt_physdev xt_ipvs ip_set ip_vs

sh /run/vm/command </dev/null >/dev/ttyS1 2>&1
echo "$?" >/run/vm/status.new
mv /run/vm/status.new /run/vm/status
# Waits until the serial port has sent everything.
stty -F /dev/ttyS1 sane
echo o >/proc/sysrq-trigger
sleep 60
