#!/bin/sh
# Prepares the virtual machine's kernel and first file system.
#
#   fetch.sh DIR    makes DIR/vmlinux, DIR/initramfs and DIR/modules/VERSION
#
# The kernel of this host's distribution (of Debian 12: 6.1), its modules and busybox-static are downloaded with
# apt-get and unpacked, and nothing is installed. A DIR that this script has made is left alone, so it serves as a
# cache.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: fetch.sh DIR}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

fail() {
    echo "no virtual machine: $*" >&2
    exit 1
}

# Runs that start side by side: one of them fetches, the others wait.
exec 9>"$dir/lock"
flock 9
made_by=$(cat "$here/fetch.sh" "$here/init" | cksum)
[ "$(cat "$dir/complete" 2>/dev/null)" = "$made_by" ] && exit 0

[ "$(uname -m)" = x86_64 ] || fail "it runs the programs of an x86-64 host, and this is $(uname -m)"
command -v apt-get >/dev/null || fail "its kernel is a package of Debian or Ubuntu, and there is no apt-get"

# Prints the version that the distribution's kernel has in names of packages: of Debian's, or of Ubuntu's.
newest() {
    apt-cache depends linux-image-amd64 linux-image-generic 2>/dev/null |
        sed -n 's/^ *|*Depends: linux-image-\([0-9].*\)/\1/p' | head -n 1
}
version=$(newest)
if [ -z "$version" ]; then
    apt-get -q update >&2 || fail "apt-get update failed"
    version=$(newest)
fi
[ -n "$version" ] || fail "the packages for this host have neither linux-image-amd64 nor linux-image-generic"

rm -rf "$dir/debs" "$dir/root" "$dir/first" "$dir/modules" "$dir/complete"
mkdir -p "$dir/debs" "$dir/root" "$dir/first/modules"
download() {
    packages="linux-image-$version busybox-static"
    # Ubuntu has most modules in packages of their own.
    for package in "linux-modules-$version" "linux-modules-extra-$version"; do
        ! apt-cache show "$package" >/dev/null 2>&1 || packages="$packages $package"
    done
    echo "fetching $packages" >&2
    # shellcheck disable=SC2086
    (cd "$dir/debs" && apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=2 \
        download $packages) >"$dir/apt.log" 2>&1
}
# The lists of packages may be out of date.
download || { apt-get -q update >&2 && version=$(newest) && download; } ||
    fail "$packages cannot be downloaded: $(tail -n 3 "$dir/apt.log")"
for deb in "$dir"/debs/*.deb; do
    dpkg-deb --extract "$deb" "$dir/root"
done
# Debian 13 and Ubuntu have modules below /usr.
[ -e "$dir/root/lib" ] || ln -s usr/lib "$dir/root/lib"
[ -d "$dir/root/lib/modules/$version" ] || mv "$dir/root/usr/lib/modules" "$dir/root/lib/"
# A machine without devices needs few drivers, and the others are most of the package.
(cd "$dir/root/lib/modules/$version/kernel" && rm -rf sound drivers/net/ethernet drivers/net/wireless &&
    find drivers -mindepth 1 -maxdepth 1 ! -name net ! -name virtio ! -name char -exec rm -rf {} +)
depmod --basedir "$dir/root" "$version"

# The kernel without the program that decompresses it, which takes longer than all else when it is
# emulated. Documentation/arch/x86/boot.rst of Linux has the offsets; the last four bytes are a length.
image=$dir/root/boot/vmlinuz-$version
field() {
    od -A n -j "$1" -N "$2" -t "u$2" "$image" | tr -d ' '
}
offset=$((($(field 497 1) + 1) * 512 + $(field 584 4)))
tail -c "+$((offset + 1))" "$image" | head -c "$(($(field 588 4) - 4))" >"$dir/compressed"
# A kernel that is compressed otherwise does it itself.
xz --decompress <"$dir/compressed" >"$dir/vmlinux" 2>/dev/null ||
    zstd --decompress --quiet --stdout "$dir/compressed" >"$dir/vmlinux" 2>/dev/null || cp "$image" "$dir/vmlinux"
rm "$dir/compressed"

# The modules that are needed to reach the host's files, in the order in which they are loaded.
for module in virtio_pci 9pnet_virtio 9p overlay; do
    modprobe --dirname "$dir/root" --set-version "$version" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$dir/order"
install -m 755 "$here/init" "$dir/first/init"
cp "$(find "$dir/root" -path '*/bin/busybox' | head -n 1)" "$dir/first/busybox"
while read -r module; do
    name=$(basename "$module")
    name=${name%.ko*}.ko
    case "$module" in
        *.xz) xz --decompress --stdout "$module" ;;
        *.zst) zstd --decompress --stdout --quiet "$module" ;;
        *) cat "$module" ;;
    esac >"$dir/first/modules/$name" || fail "the module $module cannot be decompressed"
    echo "$name"
done <"$dir/order" >"$dir/first/order"
(cd "$dir/first" && find . | ./busybox cpio -o -H newc 2>/dev/null) | gzip >"$dir/initramfs"

mv "$dir/root/lib/modules" "$dir/modules"
rm -rf "$dir/debs" "$dir/root" "$dir/first" "$dir/order" "$dir/apt.log"
echo "$made_by" >"$dir/complete"
