#!/bin/sh
# Publishes what scripts/release.sh has made of a tag: pushes the images and the chart to the registry, signs without
# keys, and leaves a draft of a release of the forge. After a failure it is run again, with the same files.
#
#   REGISTRY=HOST/OWNER scripts/publish.sh [DIRECTORY]
#
# The directory is target/release-files if not given. skopeo, helm and gh must be logged in, and cosign be able to ask for
# an identity.
set -eu
cd "$(dirname "$0")/.."
: "${REGISTRY:?such as ghcr.io/OWNER}"
files=${1:-target/release-files}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "$(git describe --exact-match --tags --match 'v*')" = "v$version" ] ||
    { echo "this commit is not tagged v$version" >&2; exit 1; }
(cd "$files" && sha256sum --check --strict --quiet SHA256SUMS)

cosign sign-blob --yes --bundle "$files/SHA256SUMS.sigstore.json" "$files/SHA256SUMS"
# Nobody but the owners sees a draft: what fails below leaves no half of a release.
is_draft=$(gh release view "v$version" --json isDraft --jq .isDraft 2>/dev/null) || is_draft=none
[ "$is_draft" != false ] || { echo "v$version is published already" >&2; exit 1; }
[ "$is_draft" != none ] ||
    gh release create "v$version" --draft --verify-tag --title "$version" --notes-file "$files/notes.md"
gh release upload "v$version" --clobber "$files"/*

parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
# Pushes an image with all its architectures, and signs what the registry has by then.
push() { # FILE TAG
    skopeo copy --all --digestfile "$parts/digest" "oci-archive:$1" "docker://$REGISTRY/switchyard:$2"
    digest=$(cat "$parts/digest")
    cosign sign --yes --recursive "$REGISTRY/switchyard@$digest"
    cosign attest --yes --type cyclonedx --predicate "$files/switchyard-$version.cdx.json" "$REGISTRY/switchyard@$digest"
}
push "$(echo "$files/switchyard-$version"-iptables-*.oci.tar)" "$version-iptables"
push "$files/switchyard-$version-nftables.oci.tar" "$version"
# The digest is the subject of the provenance.
[ -z "${GITHUB_OUTPUT:-}" ] || echo "digest=$digest" >>"$GITHUB_OUTPUT"
helm push "$files/switchyard-$version.tgz" "oci://$REGISTRY/charts"
