#!/bin/sh
# Prints which tests were skipped, and fails if one of these is not in the list of those that may be.
#
#   check-skipped.sh FILE [LIST]    FILE has a line "PACKAGE TEST: REASON" for each, LIST patterns of such
#                                   lines (testing/skipped.txt)
#
# Tests of the list that ran are fine: a machine may be able to do more than the list expects.
set -eu

file=${1:?usage: check-skipped.sh FILE [LIST]}
list=${2:-$(dirname "$0")/../testing/skipped.txt}
[ -s "$file" ] || { echo "no test was skipped"; exit 0; }

echo "skipped tests, by reason:"
sed 's/^[^:]*\(:[^ ][^:]*\)*: //' "$file" | sort | uniq -c

# Prints the lines that no pattern of the list matches.
unknown=$(sort -u "$file" | while read -r line; do
    is_known=
    while read -r pattern; do
        case "$pattern" in '' | '#'*) continue ;; esac
        # shellcheck disable=SC2254
        case "$line" in $pattern) is_known=1 ;; esac
    done <"$list"
    [ -n "$is_known" ] || echo "$line"
done)
if [ -n "$unknown" ]; then
    echo "skipped, and not in $list:"
    echo "$unknown"
    exit 1
fi >&2
