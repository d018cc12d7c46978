#!/bin/sh
# Checks an image that build-image.sh made: every digest and size, the link, and, as root, that the
# program in it proxies in its root file system (try-root.sh), in every mode that the image is for. The
# program of an image for another architecture is emulated (try-emulated.sh).
#
#   [LIMIT=BYTES] deploy/test-image.sh FILE
set -eu
# The limit of the binary's size: 17 MiB.
limit=${LIMIT:-17825792}
archive=$1
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$1" >&2; exit 1; }

mkdir "$work/layout" "$work/root"
tar -C "$work/layout" -xf "$archive"
for blob in "$work"/layout/blobs/sha256/*; do
    [ "$(sha256sum "$blob" | cut -d' ' -f1)" = "${blob##*/}" ] || fail "$blob has another digest"
done
# Every blob that is named by digest and size must exist in that size.
cat "$work/layout/index.json" "$work"/layout/blobs/sha256/* 2>/dev/null |
    grep -ao '"digest":"sha256:[0-9a-f]*","size":[0-9]*' |
    sed 's/.*sha256:\([0-9a-f]*\)","size":\([0-9]*\)/\1 \2/' >"$work/named"
[ "$(wc -l <"$work/named")" = 3 ] || fail "an index, a manifest, a configuration and a layer are expected"
while read -r sum size; do
    [ "$(wc -c <"$work/layout/blobs/sha256/$sum")" = "$size" ] || fail "$sum has another size"
done <"$work/named"
layer=$(sed 's/.*"layers":\[{[^}]*"digest":"sha256:\([0-9a-f]*\)".*/\1/' \
    "$work/layout/blobs/sha256/$(sed 's/.*"digest":"sha256:\([0-9a-f]*\)".*/\1/' "$work/layout/index.json")")
tar -C "$work/root" --xattrs --xattrs-include=security.capability -xzf "$work/layout/blobs/sha256/$layer"
[ "$(readlink "$work/root/usr/local/bin/kube-proxy")" = switchyard ] || fail "kube-proxy is no link"
size=$(wc -c <"$work/root/usr/local/bin/switchyard")
[ "$size" -le "$limit" ] || fail "the binary has $size bytes, more than $limit"
architecture=$(grep -ao '"architecture":"[a-z0-9]*"' "$work/layout/index.json")
case $architecture:$(uname -m) in
    *arm64*:x86_64)
        "$here/try-emulated.sh" "$work/root/usr/local/bin/switchyard"
        echo "$archive is sound: binary $size bytes"
        exit
        ;;
esac
if [ "$(id -u)" = 0 ]; then
    said=$(chroot "$work/root" /usr/local/bin/kube-proxy --version)
    case $said in
        "Kubernetes v"*) ;;
        *) fail "--version prints $said" ;;
    esac
    said=$(chroot "$work/root" /go-runner --log-file=/tmp/log --also-stdout /usr/local/bin/kube-proxy --version)
    case $said in
        "Kubernetes v"*) [ "$said" = "$(cat "$work/root/tmp/log")" ] || fail "/go-runner writes no log" ;;
        *) fail "/go-runner prints $said" ;;
    esac
    rm "$work/root/tmp/log"
    # A binary that could not be marked with its capability runs as root only.
    user=0:0
    if getcap "$work/root/usr/local/bin/switchyard" | grep -q cap_net_admin; then user=65532:65532; fi
    "$here/try-root.sh" "$work/root" nftables "$user"
    [ "$user" = 0:0 ] || "$here/try-root.sh" "$work/root" nftables 0:0
    if [ -e "$work/root/usr/sbin/iptables" ]; then
        "$here/try-root.sh" "$work/root" iptables-nft 0:0
        "$here/try-root.sh" "$work/root" iptables-legacy 0:0
    fi
fi
echo "$archive is sound: binary $size bytes"
