#!/bin/sh
# Runs several test programs one after the other in one machine, as booting a machine for each takes longer
# than most of them do.
#
#   tests.sh collect FILE PROGRAM [ARGUMENT ...]   notes that the program is to be run
#   tests.sh run FILE                              runs all programs of the file, here
#
# `collect` is a runner for cargo, which builds programs and knows their arguments and directories:
#
#   cargo --config "target.'cfg(all())'.runner=['$PWD/testing/vm/tests.sh', 'collect', '/tmp/list']" test ...
#   testing/vm/run.sh testing/vm/tests.sh run /tmp/list
#
# TESTS_OF, if set, has the names of the packages whose programs are noted, separated by spaces. So cargo can be
# asked for all packages: asked for some, it builds their dependencies anew, with other features.
#
# `run` fails if any program fails, after all have run, and names those that failed; also if any test is
# skipped, as these programs are chosen for where they run.
set -eu

usage() {
    echo "usage: tests.sh collect FILE PROGRAM [ARGUMENT ...] | tests.sh run FILE" >&2
    exit 2
}

[ $# -ge 2 ] || usage
mode=$1 list=$2
shift 2

# Prints the words in a form that the shell reads as the same words.
quoted() {
    for word in "$@"; do
        printf "'%s' " "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"
    done
}

failed=
count=0
# Runs a program in a directory. The lines of the list are calls of this.
in_directory() {
    directory=$1
    shift
    count=$((count + 1))
    echo "--- $*"
    started=$(date +%s)
    (cd "$directory" && "$@") || failed="$failed
$* ($directory) failed with $?"
    echo "--- $(($(date +%s) - started)) s"
}

case "$mode" in
    collect)
        [ $# -gt 0 ] || usage
        case " ${TESTS_OF:-${CARGO_PKG_NAME:-}} " in
            *" ${CARGO_PKG_NAME:-} "*) echo "in_directory $(quoted "$PWD" "$@")" >>"$list" ;;
        esac
        ;;
    run)
        SWITCHYARD_SKIPPED=$(mktemp)
        export SWITCHYARD_SKIPPED
        # shellcheck source=/dev/null
        . "$list"
        skipped=$(cat "$SWITCHYARD_SKIPPED")
        rm -f "$SWITCHYARD_SKIPPED"
        if [ "$count" -eq 0 ]; then
            echo "there is no test program in $list" >&2
            exit 1
        fi
        if [ -n "$failed" ]; then
            echo "of $count test programs, these failed:$failed" >&2
            exit 1
        fi
        if [ -n "$skipped" ]; then
            echo "skipped, but to be run here:" >&2
            echo "$skipped" >&2
            exit 1
        fi
        echo "$count test programs passed"
        ;;
    *) usage ;;
esac
