#!/bin/sh
# Checks each library alone, without features and with each feature. That, and a build without dev-dependencies,
# shows what another crate's features would hide. Lints run with all features (make clippy). A warning is a failure.
set -eu
cd "$(dirname "$0")/.."

check() {
    status=0
    printed=$(cargo check --quiet --color never "$@" 2>&1) || status=$?
    if [ "$status" -ne 0 ] || [ -n "$printed" ]; then
        echo "$printed" >&2
        exit 1
    fi
}

for manifest in */Cargo.toml; do
    case "$manifest" in bin/* | fuzz/*) continue ;; esac
    name=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)
    features=$(sed -n '/^\[features\]$/,/^\[[^f]/s/^\([a-z0-9-]*\) = .*/\1/p' "$manifest")
    for feature in '' $features; do
        [ "$feature" != default ] || continue
        set -- --package "$name" ${feature:+--features "$feature"}
        case "$name/$feature" in
            # Beside others, each of which would enable a feature of this name.
            switchyard/?*) set -- --package "$name" --features "$name/$feature" ;;
        esac
        case "$name/$feature" in
            # A program selects the version of the API, by a feature of a dependency that a package names.
            switchyard-sources/kube) set -- "$@" --features k8s-openapi/latest ;;
            switchyard/kube) set -- "$@" --package switchyard-sources --features k8s-openapi/latest ;;
            */k8s-openapi) set -- "$@" --package switchyard-core --features k8s-openapi/latest ;;
        esac
        echo "$name${feature:+, feature $feature}"
        check --no-default-features "$@"
    done
done
echo "switchyard-sources, no provider of TLS's algorithms"
rustls=$(cargo tree --quiet --package switchyard-sources --features kube --edges normal --prefix none --format '{p} {f}' |
    sed -n 's/^rustls v[^ ]* //p' | sort -u)
case "$rustls" in
    *ring* | *aws* | '')
        # With two, rustls panics.
        echo "the program is to choose the provider, and not this library: rustls has the features '$rustls'" >&2
        exit 1
        ;;
esac
echo "switchyard-core, the oldest version of the API"
check --package switchyard-core --features k8s-openapi,k8s-openapi/earliest
