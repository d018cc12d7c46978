# shellcheck shell=sh
# Functions about OCI layouts, for build-image.sh and index-images.sh. $layout is the directory of the layout.
: "${layout:?}"

# The same input makes the same archive: order, owners and times are fixed.
reproducible() {
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --format=posix \
        --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime "$@"
}

digest() { sha256sum "$1" | cut -d' ' -f1; }

# Moves a file to the path of its digest; prints digest and size as two words.
blob() {
    sum=$(digest "$1")
    mv "$1" "$layout/blobs/sha256/$sum"
    echo "$sum $(wc -c <"$layout/blobs/sha256/$sum")"
}

# Writes the index of the layout, with one image of that name: NAME:TAG and the fields of its descriptor.
put_index() {
    case $1 in
        */*) full=$1 ;;
        *) full=localhost/$1 ;;
    esac
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
        "$2" "$full" "${1##*:}" >"$layout/index.json"
    printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
}
