#!/bin/sh
# Fails if RustSec has advisories about dependencies of this workspace. If the database cannot be
# fetched, the check is skipped with a message: a test must not fail for want of a network.
set -eu
cd "$(dirname "$0")/.."

if ! reason=$(cargo-deny --log-level error fetch db 2>&1); then
    echo "advisories: NOT CHECKED, the database cannot be fetched:"
    echo "$reason" | tail -n 3
    echo "check-advisories.sh advisories: the database cannot be fetched" >>"${SWITCHYARD_SKIPPED:-/dev/null}"
    exit 0
fi
# The database has been fetched, so a failure from now on is an advisory.
exec cargo-deny --log-level error check --disable-fetch advisories
