#!/usr/bin/env bash
# Runs two commands at the same time, and succeeds if both do. What the first one prints, whose lines get a
# prefix, comes between what the second one prints. If one fails, or this script ends, so does the other.
#
#   beside.sh PREFIX COMMAND COMMAND    each one command with arguments, read by the shell
set -euo pipefail

prefix=${1:?usage: beside.sh PREFIX COMMAND COMMAND}
# Each is a process group, which can be ended with all that it has started, and ends where this script is killed
# as far as the command hands a signal on.
set -m
setpriv --pdeathsig TERM sh -c "exec $2" </dev/null > >(exec sed -u "s/^/$prefix/") 2>&1 &
first=$!
setpriv --pdeathsig TERM sh -c "exec $3" </dev/null &
second=$!
set +m
trap 'trap - HUP INT TERM; kill -- ${first:+"-$first"} ${second:+"-$second"} 2>/dev/null || :; wait' EXIT
trap 'exit 143' HUP INT TERM

ended=0
wait -n -p one "$first" "$second" || ended=$?
if [ "$one" = "$first" ]; then
    first=
    [ "$ended" -eq 0 ] || echo "${prefix}failed with $ended" >&2
else
    second=
fi
[ "$ended" -eq 0 ] || exit "$ended"
other=$first$second
wait "$other" || ended=$?
[ "$ended" -eq 0 ] || [ -z "$first" ] || echo "${prefix}failed with $ended" >&2
first='' second=''
exit "$ended"
