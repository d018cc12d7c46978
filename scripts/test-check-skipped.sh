#!/bin/sh
# Tests check-skipped.sh.
set -eu
cd "$(dirname "$0")"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '# SCTP\nrig *::sctp::*: no SCTP\n\n* vm::*: no IPVS\n' >"$dir/list"

# expect EXIT-CODE TEXT LINE ...: runs the script with these lines, and compares.
expect() {
    expected=$1 text=$2 code=0
    shift 2
    printf '%s\n' "$@" >"$dir/file"
    [ $# -gt 0 ] || : >"$dir/file"
    output=$(./check-skipped.sh "$dir/file" "$dir/list" 2>&1) || code=$?
    case "$code $output" in
        "$expected "*"$text"*) ;;
        *)
            echo "expected exit code $expected and \"$text\", got $code: $output" >&2
            exit 1
            ;;
    esac
}

expect 0 "no test was skipped"
expect 0 "2 no SCTP" "rig nftables::sctp::a: no SCTP" "rig iptables::sctp::a: no SCTP"
expect 0 "1 no IPVS" "rig vm::a: no IPVS"
# Another test, another reason, another package.
expect 1 "rig nftables::udp::a: no SCTP" "rig nftables::sctp::a: no SCTP" "rig nftables::udp::a: no SCTP"
expect 1 "rig nftables::sctp::a: no time" "rig nftables::sctp::a: no time"
expect 1 "gear nftables::sctp::a: no SCTP" "gear nftables::sctp::a: no SCTP"
