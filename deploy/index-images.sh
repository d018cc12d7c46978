#!/bin/sh
# Joins images that build-image.sh made, each for another architecture, to one image: an OCI index.
#
#   deploy/index-images.sh [-o FILE] [-t NAME:TAG] IMAGE ...
#
#   -o  the tar file; target/image/switchyard.oci.tar if not given
#   -t  the name in it; switchyard:latest if not given
#
# Then `ctr -n k8s.io images import FILE`, or `skopeo copy --all oci-archive:FILE docker://...`.
set -eu
umask 022
output=target/image/switchyard.oci.tar name=switchyard:latest
while getopts o:t: option; do
    case $option in
        o) output=$OPTARG ;;
        t) name=$OPTARG ;;
        *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { echo "name the images to join" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layout=$work/layout
mkdir -p "$layout/blobs/sha256"
# shellcheck source=deploy/oci.sh
. "$(dirname "$0")/oci.sh"

entries=
for image in "$@"; do
    mkdir "$work/image"
    tar -C "$work/image" -xf "$image"
    cp "$work"/image/blobs/sha256/* "$layout/blobs/sha256/"
    # What describes the image, without the annotations with its name.
    entry=$(sed 's/.*"manifests":\[{\(.*\),"annotations".*/\1/' "$work/image/index.json")
    platform=$(echo "$entry" | sed 's/.*"architecture":"\([a-z0-9]*\)".*/\1/')
    case $entries in *"\"architecture\":\"$platform\""*) echo "two images for $platform" >&2; exit 1 ;; esac
    entries="${entries:+$entries,}{$entry}"
    rm -r "$work/image"
done
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' "$entries" >"$work/index"
# shellcheck disable=SC2046
set -- $(blob "$work/index")
put_index "$name" '"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:'"$1"'","size":'"$2"
mkdir -p "$(dirname "$output")"
reproducible -C "$layout" -cf "$output" .
echo "$output: $name, sha256:$1"
