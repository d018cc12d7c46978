#!/bin/sh
# Runs the packet cases in a virtual machine, and keeps their results, which the machine forgets.
#
#   results.sh DIRECTORY RUNNER PROGRAM [ARGUMENT ...]
#
# RUNNER, which is run.sh, runs the program, which is service-conformance, with its output as ours. The results that the
# program adds to those of DIRECTORY come out between marks, and are written there.
set -eu

mark='--- results of'
if [ "${1:-}" = inside ] && [ $# -ge 3 ]; then
    known=$2
    shift 2
    results=$(mktemp -d)
    cp "$known"/*.json "$results"
    status=0
    "$@" --results "$results" || status=$?
    for file in "$results"/*.json; do
        name=$(basename "$file")
        cmp -s "$file" "$known/$name" || { echo "$mark $name"; cat "$file"; echo "$mark"; }
    done
    rm -rf "$results"
    exit "$status"
fi

[ $# -ge 3 ] || { echo "usage: results.sh DIRECTORY RUNNER PROGRAM [ARGUMENT ...]" >&2; exit 2; }
directory=$(cd "$1" && pwd)
runner=$2
shift 2
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
status=$(mktemp)
trap 'rm -f "$status"' EXIT
{
    result=0
    "$runner" "$self" inside "$directory" "$@" || result=$?
    echo "$result" >"$status"
} | tr -d '\r' | awk -v mark="$mark" -v directory="$directory" '
    # Whole results replace those of before: a machine that ends early leaves a part.
    index($0, mark) == 1 {
        if (file) { close(file); system("mv -- '\''" file "'\'' '\''" directory "/" name "'\''"); file = ""; next }
        name = substr($0, length(mark) + 2)
        if (name !~ /^[A-Za-z0-9._-]+$/) { print; next }
        file = directory "/" name ".new"
        printf "" > file
        next
    }
    file { print > file; next }
    { print; fflush() }
    END { if (file) { close(file); system("rm -f -- '\''" file "'\''") } }
'
exit "$(cat "$status")"
