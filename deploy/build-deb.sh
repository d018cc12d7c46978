#!/bin/sh
# Builds a Debian package of a static binary (build-image.sh makes one): the program, a systemd unit that is
# not enabled, its configuration and user, completions and the manual page.
#
#   deploy/build-deb.sh [-a ARCHITECTURE] [-z COMPRESSION] [-o DIRECTORY] BINARY
#
#   -a  amd64 or arm64; this machine's if not given. Another's binary is asked for its texts by qemu
#   -z  none, gzip, xz (if not given) or zstd
#   -o  where switchyard_VERSION_ARCHITECTURE.deb goes; target/packages if not given
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
architecture=$(dpkg --print-architecture) compression=xz output=$here/../target/packages
while getopts a:z:o: option; do
    case $option in
        a) architecture=$OPTARG ;;
        z) compression=$OPTARG ;;
        o) output=$OPTARG ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
binary=${1:?usage: build-deb.sh [-a ARCHITECTURE] [-z COMPRESSION] [-o DIRECTORY] BINARY}
emulator=
if [ "$architecture" != "$(dpkg --print-architecture)" ]; then
    case $architecture in
        arm64) emulator=qemu-aarch64 ;;
        amd64) emulator=qemu-x86_64 ;;
    esac
fi
switchyard() { $emulator "$binary" "$@"; }
version=$(switchyard --version) version=${version##* }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"
install -D -m 0755 "$binary" "$root/usr/bin/switchyard"
install -D -m 0644 "$here/systemd/switchyard.service" "$root/usr/lib/systemd/system/switchyard.service"
install -D -m 0644 "$here/systemd/config.yaml" "$root/etc/switchyard/config.yaml"
completions() {
    mkdir -p "$(dirname "$root/usr/share/$2")"
    switchyard completions "$1" >"$root/usr/share/$2"
}
completions bash bash-completion/completions/switchyard
completions zsh zsh/vendor-completions/_switchyard
completions fish fish/vendor_completions.d/switchyard.fish
mkdir -p "$root/usr/share/man/man1" "$root/usr/share/doc/switchyard" "$root/DEBIAN"
switchyard man | gzip -9n >"$root/usr/share/man/man1/switchyard.1.gz"
cp "$here/../LICENSE" "$root/usr/share/doc/switchyard/copyright"

echo /etc/switchyard/config.yaml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<EOF
Package: switchyard
Version: $version
Architecture: $architecture
Maintainer: Switchyard
Section: net
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: passwd
Suggests: iptables, ipset, kmod
Description: node agent that implements Kubernetes Services
 In kube-proxy's place, for nodes whose proxy is no pod. The unit switchyard.service
 starts once it is enabled and /etc/switchyard/kubeconfig exists.
EOF
# DPKG_ROOT is another root that dpkg installs into.
cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    grep -q '^switchyard:' "$DPKG_ROOT/etc/group" || groupadd ${DPKG_ROOT:+--prefix "$DPKG_ROOT"} --system switchyard
    grep -q '^switchyard:' "$DPKG_ROOT/etc/passwd" || useradd ${DPKG_ROOT:+--prefix "$DPKG_ROOT"} \
        --system --gid switchyard --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin switchyard
    chown "0:$(sed -n 's/^switchyard:[^:]*:\([0-9]*\):.*/\1/p' "$DPKG_ROOT/etc/group")" "$DPKG_ROOT/etc/switchyard"
    chmod 0750 "$DPKG_ROOT/etc/switchyard"
    if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl try-restart switchyard.service
    fi
fi
EOF
# The rules stay in the kernel, as with an image: --cleanup removes them.
cat >"$root/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
    systemctl disable --now switchyard.service
fi
EOF
chmod 0755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"

mkdir -p "$output"
# The same input makes the same package.
export SOURCE_DATE_EPOCH=0
find "$root" -exec touch --no-dereference --date=@0 {} +
dpkg-deb --root-owner-group -Z"$compression" --build "$root" "$output/switchyard_${version}_$architecture.deb"
