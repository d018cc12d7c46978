#!/bin/sh
# Runs several test programs: in one virtual machine, as booting a machine for each takes longer than most of them do,
# or some at once, as most of them wait more than they compute.
#
#   tests.sh collect FILE PROGRAM [ARGUMENT ...]   notes that the program is to be run
#   tests.sh run NUMBER FILE                       runs all programs of the file, here, so many at once, for
#                                                  TEST_SECONDS each (1800); prints what each wrote when it ends
#
# `collect` is a runner for cargo, which builds programs and knows their arguments and directories:
#
#   cargo --config "target.'cfg(all())'.runner=['$PWD/testing/vm/tests.sh', 'collect', '/tmp/list']" test ...
#   testing/vm/run.sh testing/vm/tests.sh run 1 /tmp/list
#
# TESTS_OF, if set, has the names of the packages whose programs are noted, separated by spaces. So cargo can be
# asked for all packages: asked for some, it builds their dependencies anew, with other features.
#
# `run` fails if any program fails, after all have run, and names those that failed, with the failures; also if any test is
# skipped, as these programs are chosen for where they run, unless MAY_SKIP is set.
set -eu

usage() {
    echo "usage: tests.sh collect FILE PROGRAM [ARGUMENT ...] | tests.sh run NUMBER FILE" >&2
    exit 2
}

[ $# -ge 3 ] || usage
mode=$1
shift

# Prints the words in a form that the shell reads as the same words.
quoted() {
    for word in "$@"; do
        printf "'%s' " "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"
    done
}

# Prints what a test program wrote of its failed tests, 40 lines of each as dumps of the kernel follow, or else how
# its output ends.
failures() {
    if grep -q '^failures:' "$1"; then
        awk '/^failures:/ { failed = 1; lines = 0 } /^---- / { lines = 0 } failed && lines++ < 40' "$1"
    else
        tail -n 20 "$1"
    fi
}

# Prints of each failed test, after an end of line, the name and the first three lines, which have the reason.
failed_tests() {
    awk 'BEGIN { print "" }
        /^failures:/ { failed = 1; lines = 0 }
        failed && /^---- / { print "    " $2; lines = 3; next }
        lines > 0 && !/^(thread .*:|note: .*)?$/ { lines--; print "        " substr($0, 1, 300) }' "$1"
}

# Runs a program of a package in a directory. The lines of the list are calls of this.
in_directory() {
    export CARGO_PKG_NAME="$1"
    directory=$2
    shift 2
    echo "--- $* begins" >&3
    echo "--- $*"
    started=$(date +%s)
    ended=0
    # It has a process group of its own, which no signal to this one reaches.
    (cd "$directory" && exec setpriv --pdeathsig TERM timeout "${TEST_SECONDS:-1800}" "$@") || ended=$?
    echo "--- $(($(date +%s) - started)) s"
    [ "$ended" -eq 0 ] || {
        failures "$log" >>"$work/failures"
        printf '%s\n' "$* ($directory) failed with $ended$(failed_tests "$log")" >>"$work/failed"
    }
}

case "$mode" in
    collect)
        list=$1
        shift
        case " ${TESTS_OF:-${CARGO_PKG_NAME:-}} " in
            *" ${CARGO_PKG_NAME:-} "*) echo "in_directory $(quoted "${CARGO_PKG_NAME:-}" "$PWD" "$@")" >>"$list" ;;
        esac
        ;;
    # One line of the list, for `run`.
    line)
        work=$1
        log=$(mktemp "$work/XXXXXX")
        eval "$2" 3>&1 >"$log" 2>&1
        flock "$work" cat "$log"
        rm "$log"
        ;;
    run)
        number=$1 list=$2
        [ -s "$list" ] || { echo "there is no test program in $list" >&2; exit 1; }
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        [ -n "${MAY_SKIP:-}" ] || export SWITCHYARD_SKIPPED="$work/skipped"
        count=$(wc -l <"$list")
        xargs -d '\n' -n 1 -P "$number" "$0" line "$work" <"$list" || echo "xargs failed" >>"$work/failed"
        if [ -e "$work/failed" ]; then
            # Whoever reads the last lines alone reads the names.
            cat "$work/failures" >&2 || true
            echo "of $count test programs, these failed:" >&2
            cat "$work/failed" >&2
            exit 1
        fi
        if [ -s "$work/skipped" ]; then
            echo "skipped, but to be run here:" >&2
            cat "$work/skipped" >&2
            exit 1
        fi
        echo "$count test programs passed"
        ;;
    *) usage ;;
esac
