#!/usr/bin/env bash
# Runs two commands at the same time, and succeeds if both do. What the first one prints, whose lines get a
# prefix, comes between what the second one prints. If the second one fails, the first is ended.
#
#   beside.sh PREFIX COMMAND COMMAND    commands of the shell
set -euo pipefail

prefix=${1:?usage: beside.sh PREFIX COMMAND COMMAND}
# A process group of its own, which can be ended with all that it has started.
set -m
(sh -c "$2" 2>&1 | sed -u "s/^/$prefix/") </dev/null &
first=$!
set +m
# Nothing is left of the group that has ended by itself.
trap 'kill -- "-$first" 2>/dev/null || :' EXIT
trap 'exit 130' HUP INT TERM

sh -c "$3"
wait "$first"
