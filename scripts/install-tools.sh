#!/bin/sh
# Installs missing programs that the make targets run: Debian packages with apt-get (which needs root),
# cargo tools into target/tools. Prints what is missing if it cannot be installed.
#
#   scripts/install-tools.sh PROGRAM ...
set -eu
cd "$(dirname "$0")/.."

# Prints the Debian package of a program.
package_of() {
    case "$1" in
        nft) echo nftables ;;
        ip) echo iproute2 ;;
        setcap) echo libcap2-bin ;;
        cc) echo gcc libc6-dev make ;;
        nc) echo netcat-openbsd ;;
        qemu-system-x86_64) echo qemu-system-x86 ;;
        setpriv) echo util-linux ;;
        xz) echo xz-utils ;;
        *) echo "$1" ;;
    esac
}

packages=""
for program in "$@"; do
    case "$program" in
        cargo-deny)
            if ! command -v cargo-deny >/dev/null && [ ! -x target/tools/bin/cargo-deny ]; then
                echo "installing cargo-deny (once; it takes some minutes)"
                cargo install --quiet --locked --root target/tools --version 0.20.2 cargo-deny
            fi
            ;;
        cargo-semver-checks)
            if ! command -v cargo-semver-checks >/dev/null && [ ! -x target/tools/bin/cargo-semver-checks ]; then
                echo "installing cargo-semver-checks (once; it takes some minutes)"
                # The baseline is a revision of this repository: no client of a registry is needed.
                cargo install --quiet --locked --no-default-features --root target/tools --version 0.51.0 cargo-semver-checks
            fi
            ;;
        *)
            command -v "$program" >/dev/null || packages="$packages $(package_of "$program")"
            ;;
    esac
done

if [ -n "$packages" ]; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "missing: install$packages, or run this as root on Debian or Ubuntu" >&2
        exit 1
    fi
    echo "installing$packages"
    export DEBIAN_FRONTEND=noninteractive
    # The list of packages may exist already, or be out of date.
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $packages >/dev/null 2>&1 || {
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends $packages >/dev/null
    }
fi
