#!/bin/sh
# Builds the image without a registry and without a container engine, with cargo, cc, make, tar and sha256sum: a
# static binary, a small root file system, and an OCI layout in a tar file.
#
#   [LEVEL=1-9] [PROFILE=NAME] deploy/build-image.sh [-v VARIANT] [-a ARCHITECTURE] [-o FILE] [-t NAME:TAG] \
#       [-b BINARY] [-f DIRECTORY]
#
#   -v  nftables: the binary alone, if not given; iptables: also iptables, ipset and modprobe, taken
#       from this distribution by iptables-root.sh
#   -a  amd64 or arm64; this machine's if not given. For another than this machine's: `rustup target add`, and
#       the C compiler of aarch64-linux-gnu or x86_64-linux-gnu; the variant is nftables
#   -o  the tar file; target/image/switchyard-VARIANT.oci.tar if not given
#   -t  the name in it; switchyard:latest if not given
#   -b  a binary that was built before, instead of building one
#   -f  a directory to lay over the root file system
#
# LEVEL is the compression level of the layer; 9 if not given. PROFILE is cargo's profile; dist if not
# given.
#
# index-images.sh joins the images of several architectures. Then `ctr -n k8s.io images import FILE`, `kind load image-archive FILE`,
# `skopeo copy oci-archive:FILE docker://...`, or `podman load -i FILE`.
set -eu
# The result must not depend on the user who builds it.
umask 022

cd "$(dirname "$0")/.."
variant=nftables output='' name=switchyard:latest binary='' overlay='' machine=$(uname -m)
while getopts v:a:o:t:b:f: option; do
    case $option in
        v) variant=$OPTARG ;;
        a) machine=$OPTARG ;;
        o) output=$OPTARG ;;
        t) name=$OPTARG ;;
        b) binary=$OPTARG ;;
        f) overlay=$OPTARG ;;
        *) exit 2 ;;
    esac
done
case $variant in
    nftables | iptables) ;;
    *) echo "there is no variant $variant, only nftables and iptables" >&2; exit 2 ;;
esac
output=${output:-target/image/switchyard-$variant.oci.tar}
profile=${PROFILE:-dist}

case $machine in
    x86_64 | amd64) machine=x86_64 architecture=amd64 ;;
    aarch64 | arm64) machine=aarch64 architecture=arm64 ;;
    *) echo "do not know the architecture $machine" >&2; exit 1 ;;
esac
target=$machine-unknown-linux-gnu
if [ "$machine" != "$(uname -m)" ]; then
    [ "$variant" = nftables ] ||
        { echo "the programs of iptables come from this machine: build this variant on $machine" >&2; exit 1; }
    # What cargo, and what the build script of jemalloc, take a compiler by.
    compiler=$machine-linux-gnu-gcc
    export "CARGO_TARGET_$(echo "$target" | tr a-z- A-Z_)_LINKER=$compiler" "CC_$(echo "$target" | tr - _)=$compiler"
fi
# Kernels for arm64 have pages of 4, 16 or 64 KiB. jemalloc runs with what it was built for, and smaller ones.
export AARCH64_UNKNOWN_LINUX_GNU_JEMALLOC_SYS_WITH_LG_PAGE=16

if [ -z "$binary" ]; then
    flags="-C target-feature=+crt-static"
    # Packs the list of addresses to adjust at the start, 3% of the file. The C library's start code
    # can read that since glibc 2.36, and linkers write it for x86-64.
    version=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
    if [ "$machine" = x86_64 ] && [ "$(printf '2.36\n%s\n' "$version" | sort -V | head -n 1)" = 2.36 ]; then
        flags="$flags -C link-arg=-Wl,-z,pack-relative-relocs"
    fi
    # The explicit target keeps the flags from build scripts and macros.
    RUSTFLAGS=$flags \
        cargo build --profile "$profile" --locked --package switchyard-agent --bin switchyard --target "$target"
    binary=${CARGO_TARGET_DIR:-target}/$target/$profile/switchyard
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root layout=$work/layout
mkdir -p "$root/usr/local/bin" "$root/etc" "$root/var/lib/kube-proxy" "$root/tmp" "$root/run/switchyard" \
    "$layout/blobs/sha256"
chmod 1777 "$root/tmp" "$root/run/switchyard"
install -m 0755 "$binary" "$root/usr/local/bin/switchyard"
# The path of the program in kube-proxy's image, so that manifests with that path need no change.
ln -s switchyard "$root/usr/local/bin/kube-proxy"
# The path of the runner in kube-proxy's image, by which some manifests write the log to a file.
ln -s usr/local/bin/switchyard "$root/go-runner"
echo "root:x:0:0::/:/nonexistent
nonroot:x:65532:65532::/:/nonexistent" >"$root/etc/passwd"
echo "root:x:0:
nonroot:x:65532:" >"$root/etc/group"
# The API server's name may be only in the node's /etc/hosts.
echo "hosts: files dns" >"$root/etc/nsswitch.conf"
[ "$variant" = nftables ] || deploy/iptables-root.sh "$root"
[ -z "$overlay" ] || cp -a "$overlay/." "$root/"

# A user other than root has a capability only if the file grants it. If this user may not mark the
# file, the image is complete nevertheless, but must run as root.
xattrs=
if setcap cap_net_admin+ep "$root/usr/local/bin/switchyard" 2>/dev/null; then
    xattrs="--xattrs --xattrs-include=security.capability"
else
    echo "cannot mark the binary with cap_net_admin (setcap, as root): run the image as root" >&2
fi

# shellcheck source=deploy/oci.sh
. deploy/oci.sh

# shellcheck disable=SC2086
reproducible $xattrs -C "$root" -cf "$work/layer.tar" .
diff_id=$(digest "$work/layer.tar")
gzip -n "-${LEVEL:-9}" "$work/layer.tar"
# shellcheck disable=SC2046
set -- $(blob "$work/layer.tar.gz")
layer=$1 layer_size=$2

printf '{"created":"1970-01-01T00:00:00Z","architecture":"%s","os":"linux","config":{"Entrypoint":["/usr/local/bin/kube-proxy"],"WorkingDir":"/","Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$architecture" "$diff_id" >"$work/config.json"
# shellcheck disable=SC2046
set -- $(blob "$work/config.json")
config=$1 config_size=$2

printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:%s","size":%s}]}' \
    "$config" "$config_size" "$layer" "$layer_size" >"$work/manifest.json"
# shellcheck disable=SC2046
set -- $(blob "$work/manifest.json")
manifest=$1 manifest_size=$2

put_index "$name" '"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:'"$manifest"'","size":'"$manifest_size"',"platform":{"architecture":"'"$architecture"'","os":"linux"}'
# For engines that read only Docker's archives.
printf '[{"Config":"blobs/sha256/%s","RepoTags":["%s"],"Layers":["blobs/sha256/%s"]}]' \
    "$config" "$name" "$layer" >"$layout/manifest.json"

mkdir -p "$(dirname "$output")"
reproducible -C "$layout" -cf "$output" .
echo "$output: $name, sha256:$manifest"
echo "binary $(wc -c <"$root/usr/local/bin/switchyard") bytes, layer $layer_size bytes compressed"
