#!/bin/sh
# Prepares the virtual machine's kernel and first file system.
#
#   fetch.sh DIR    makes DIR/vmlinux, DIR/initramfs and DIR/modules/VERSION
#
# The newest 6.1 kernel that Debian's packages have, and busybox-static, are downloaded with apt-get and
# unpacked, and nothing is installed. A DIR that this script has made is left alone, so it serves as a cache.
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
command -v apt-get >/dev/null || fail "its kernel is a Debian package, and there is no apt-get"

# Prints the name of the kernel's package, without those for clouds and real time.
newest() {
    apt-cache search --names-only '^linux-image-6\.1\.[0-9.]*-[0-9]*-amd64$' | cut -d ' ' -f 1 |
        sort --version-sort | tail -n 1
}
package=$(newest)
if [ -z "$package" ]; then
    apt-get -q update >&2 || fail "apt-get update failed"
    package=$(newest)
fi
[ -n "$package" ] || fail "Debian's packages for this host have no linux-image-6.1.*-amd64"

rm -rf "$dir/debs" "$dir/root" "$dir/first" "$dir/modules" "$dir/complete"
mkdir -p "$dir/debs" "$dir/root" "$dir/first/modules"
echo "fetching $package and busybox-static" >&2
download() {
    (cd "$dir/debs" && apt-get -q -o APT::Sandbox::User=root -o Acquire::Retries=2 \
        download "$package" busybox-static) >"$dir/apt.log" 2>&1
}
# The lists of packages may be out of date.
download || { apt-get -q update >&2 && package=$(newest) && download; } ||
    fail "$package and busybox-static cannot be downloaded: $(tail -n 3 "$dir/apt.log")"
for deb in "$dir"/debs/*.deb; do
    dpkg-deb --extract "$deb" "$dir/root"
done

version=${package#linux-image-}
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
tail -c "+$((offset + 1))" "$image" | head -c "$(($(field 588 4) - 4))" |
    xz --decompress >"$dir/vmlinux" || fail "$package's kernel cannot be decompressed"

# The modules that are needed to reach the host's files, in the order in which they are loaded.
for module in virtio_pci 9pnet_virtio 9p overlay; do
    modprobe --dirname "$dir/root" --set-version "$version" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$dir/order"
install -m 755 "$here/init" "$dir/first/init"
cp "$dir/root/bin/busybox" "$dir/first/busybox"
while read -r module; do
    cp "$module" "$dir/first/modules/"
    basename "$module"
done <"$dir/order" >"$dir/first/order"
(cd "$dir/first" && find . | ./busybox cpio -o -H newc 2>/dev/null) | gzip >"$dir/initramfs"

mv "$dir/root/lib/modules" "$dir/modules"
rm -rf "$dir/debs" "$dir/root" "$dir/first" "$dir/order" "$dir/apt.log"
echo "$made_by" >"$dir/complete"
