#!/bin/sh
# Checks that the proxy of userspace mode, and what it needs, compile for systems other than Linux. A target
# whose standard library is not installed (`rustup target add TARGET`) is named and left out.
set -eu

cargo=${CARGO:-cargo}
for target in x86_64-pc-windows-msvc aarch64-apple-darwin; do
    if [ -d "$(rustc --print target-libdir --target "$target")" ]; then
        echo "Checking for $target"
        "$cargo" check --quiet --target "$target" --package switchyard-userspace
    else
        echo "Not checked for $target: its standard library is not installed"
        echo "check-portable.sh $target: its standard library is not installed" >>"${SWITCHYARD_SKIPPED:-/dev/null}"
    fi
done
