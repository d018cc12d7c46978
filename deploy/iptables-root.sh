#!/bin/sh
# Collects the programs of the iptables and ipvs modes for the image's root file system: iptables and
# ip6tables of both flavours, ipset and modprobe, with the libraries and extensions that they load.
# The files come from this distribution, without a container engine: installed files are copied, and
# others are taken from Debian packages (apt-get download), which are unpacked but not installed.
#
#   deploy/iptables-root.sh DIRECTORY
set -eu
# The result must not depend on the user who builds it.
umask 022
destination=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$1" >&2; exit 1; }

# Directories of programs that may be missing from an ordinary user's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
# The program that both flavours have under other names, and those names.
iptables='iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore'

# Packages whose programs are missing here, with their missing dependencies.
missing=
command -v xtables-nft-multi >/dev/null && command -v xtables-legacy-multi >/dev/null ||
    missing="$missing iptables"
command -v ipset >/dev/null || missing="$missing ipset"
command -v kmod >/dev/null || missing="$missing kmod"
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || fail "not installed here, and no Debian to get them from:$missing"
    # shellcheck disable=SC2086
    packages=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
        --no-breaks --no-replaces --no-enhances $missing | grep '^[a-z0-9]' | sort -u)
    [ -n "$packages" ] || fail "no packages known for$missing: run apt-get update first"
    installed=$(dpkg-query -Wf '${Package}\n')
    packages=$(echo "$packages" | grep -vxF "$installed")
    mkdir "$work/packages" "$work/unpacked"
    # apt-get's own user must be able to write where it downloads to.
    chmod 755 "$work"
    # shellcheck disable=SC2086
    (cd "$work/packages" && chmod 777 . && apt-get download -q $packages >/dev/null)
    for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
fi
unpacked=$work/unpacked

# Prints the path of a program, installed or unpacked.
find_program() {
    for directory in $(echo "$PATH" | tr : ' ') \
        "$unpacked/usr/sbin" "$unpacked/sbin" "$unpacked/usr/bin" "$unpacked/bin"; do
        if [ -x "$directory/$1" ]; then
            readlink -f "$directory/$1"
            return
        fi
    done
    fail "no program $1"
}

# Copies a file to the same place below the destination, or to the place that is given.
put() {
    place=$destination/${2:-${1#"$unpacked"}}
    mkdir -p "$(dirname "$place")"
    install -m "$(stat -c %a "$1")" "$1" "$place"
}

# Copies the libraries that a program or library loads, under the names that the loader looks up.
put_libraries() {
    paths=$(find "$unpacked" -name '*.so*' -printf '%h\n' 2>/dev/null | sort -u | paste -sd:)
    LD_LIBRARY_PATH=$paths ldd "$@" 2>&1 | grep -v 'not a dynamic executable' >"$work/ldd" || true
    ! grep 'not found' "$work/ldd" >&2 || fail "libraries are missing"
    sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' "$work/ldd" | sort -u |
        while read -r library; do
            real=$(readlink -f "$library")
            put "$real" "${library#"$unpacked"}"
        done
}

mkdir -p "$destination/usr/sbin" "$destination/usr/bin" "$destination/usr/lib"
# /sbin and /lib lead into /usr, as in distributions: the kernel runs /sbin/modprobe, and the loader
# looks in /lib.
for name in bin sbin lib; do ln -sfn "usr/$name" "$destination/$name"; done
[ ! -d /lib64 ] || { mkdir -p "$destination/usr/lib64"; ln -sfn usr/lib64 "$destination/lib64"; }

for flavour in nft legacy; do
    program=$(find_program "xtables-$flavour-multi")
    put "$program" "usr/sbin/xtables-$flavour-multi"
    put_libraries "$program"
    for name in $iptables; do
        prefix=${name%%-*} action=${name#"${name%%-*}"}
        ln -sfn "xtables-$flavour-multi" "$destination/usr/sbin/$prefix-$flavour$action"
    done
done
# The plain names, for people in a pod. The program itself uses the host's flavour.
for name in $iptables; do ln -sfn xtables-nft-multi "$destination/usr/sbin/$name"; done
ipset=$(find_program ipset)
put "$ipset" usr/sbin/ipset
put_libraries "$ipset"
# kmod acts as the program whose name it is called by.
kmod=$(find_program kmod)
put "$kmod" usr/bin/kmod
ln -sfn ../bin/kmod "$destination/usr/sbin/modprobe"
put_libraries "$kmod"

# iptables loads its extensions from the directory it was built for.
extensions=
for directory in "$unpacked"/usr/lib/*/xtables /usr/lib/*/xtables /usr/lib64/xtables /usr/lib/xtables; do
    if [ -d "$directory" ]; then extensions=$directory; break; fi
done
[ -n "$extensions" ] || fail "no directory xtables with the extensions of iptables"
for extension in "$extensions"/*.so; do put "$extension"; done
put_libraries "$extensions"/*.so
