#!/bin/sh
# Makes everything that a release consists of: archives and Debian packages of the program, images, the chart, a
# list of all components (SBOM), notes from CHANGELOG.md, and checksums.
#
#   scripts/release.sh --dry-run [-o DIRECTORY] [-b ARCHITECTURE=PROGRAM ...]
#   REGISTRY=HOST/OWNER scripts/release.sh [-o DIRECTORY]
#
#   -o  where it all goes; target/release-files if not given
#   -b  a static program that was built before, instead of building for amd64 and arm64. Then there is no SBOM,
#       and no image with iptables: for tests
#
# Without --dry-run, the commit must be tagged v and the version. No credentials are needed: scripts/publish.sh publishes
# what is made here, and runs none of it.
set -eu
cd "$(dirname "$0")/.."
PATH=$PWD/target/tools/bin:$PATH
is_dry='' output=$PWD/target/release-files binaries=''
while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) is_dry=1; shift ;;
        -o) output=$2; shift 2 ;;
        -b) binaries="$binaries $2"; shift 2 ;;
        *) echo "there is no argument $1" >&2; exit 2 ;;
    esac
done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
if [ -z "$is_dry" ]; then
    : "${REGISTRY:?such as ghcr.io/OWNER}"
    [ "$(git describe --exact-match --tags --match 'v*')" = "v$version" ] ||
        { echo "this commit is not tagged v$version" >&2; exit 1; }
    [ -z "$(git status --porcelain)" ] || { echo "something is not committed" >&2; exit 1; }
    [ -z "$binaries" ] || { echo "-b is for tests" >&2; exit 2; }
fi
# The chart is of the version of the program.
sed -n 's/^\(version\|appVersion\): //p' deploy/helm/switchyard/Chart.yaml | while read -r found; do
    [ "$found" = "$version" ] || { echo "Chart.yaml has the version $found, not $version" >&2; exit 1; }
done

# Prints the notes: what CHANGELOG.md has below the heading of a version.
notes() { awk -v heading="## $1" '/^## /{ found = index($0, heading) == 1; next } found' CHANGELOG.md; }
rm -rf "$output"
mkdir -p "$output"
notes "$version" >"$output/notes.md"
if [ -n "$is_dry" ] && [ ! -s "$output/notes.md" ]; then notes Unreleased >"$output/notes.md"; fi
[ -s "$output/notes.md" ] || { echo "CHANGELOG.md has no heading ## $version" >&2; exit 1; }

images=$output/switchyard-$version-nftables.oci.tar parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
name=${REGISTRY:-localhost}/switchyard:$version
# Prints the kernel's name of an architecture.
machine_of() { case $1 in amd64) echo x86_64 ;; arm64) echo aarch64 ;; esac; }
# Makes what there is for an architecture from its program.
package() { # ARCHITECTURE PROGRAM
    # cargo-binstall finds it by this name (bin/Cargo.toml).
    directory=switchyard-$version-linux-$(machine_of "$1")
    mkdir "$parts/$directory"
    install -m 0755 "$2" "$parts/$directory/switchyard"
    cp LICENSE README.md deploy/kubectl-switchyard "$parts/$directory/"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$parts" -cf - "$directory" |
        gzip -n ${LEVEL:+"-$LEVEL"} >"$output/$directory.tar.gz"
    deploy/build-deb.sh -a "$1" ${COMPRESSION:+-z "$COMPRESSION"} -o "$output" "$2"
    deploy/build-image.sh -a "$1" -b "$2" -t "$name" -o "$parts/$1.oci.tar"
}
if [ -n "$binaries" ]; then
    for binary in $binaries; do package "${binary%%=*}" "${binary#*=}"; done
else
    scripts/install-tools.sh cc ip nft setcap dpkg-deb aarch64-linux-gnu-gcc qemu-aarch64 curl iptables ipset kmod \
        cargo-cyclonedx helm
    for architecture in amd64 arm64; do
        machine=$(machine_of $architecture)
        deploy/build-image.sh -a $architecture -t "$name" -o "$parts/tried.oci.tar"
        binary=${CARGO_TARGET_DIR:-target}/$machine-unknown-linux-gnu/${PROFILE:-dist}/switchyard
        deploy/test-image.sh "$parts/tried.oci.tar"
        package $architecture "$binary"
        # The programs of iptables are those of this machine.
        if [ "$machine" = "$(uname -m)" ]; then
            with_iptables=$output/switchyard-$version-iptables-$architecture.oci.tar
            deploy/build-image.sh -a $architecture -v iptables -b "$binary" -t "$name-iptables" -o "$with_iptables"
            deploy/test-image.sh "$with_iptables"
        fi
    done
    # It lists each program of the workspace, and names this directory.
    SOURCE_DATE_EPOCH=0 cargo cyclonedx --quiet --manifest-path bin/Cargo.toml --describe binaries --format json \
        --target x86_64-unknown-linux-gnu --spec-version 1.5
    sed "s#$PWD/##g" bin/switchyard_bin.cdx.json >"$output/switchyard-$version.cdx.json"
    find . -name '*_bin.cdx.json' -not -path './target/*' -delete
fi
deploy/index-images.sh -o "$images" -t "$name" "$parts"/a*.oci.tar
helm package --destination "$output" deploy/helm/switchyard
(cd "$output" && sha256sum -- * >"$parts/SHA256SUMS" && mv "$parts/SHA256SUMS" .)
cat "$output/SHA256SUMS"
