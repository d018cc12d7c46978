#!/bin/sh
# Tests testing/vm/results.sh.
set -eu
cd "$(dirname "$0")"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/results"
echo before >"$dir/results/whole.json"
echo before >"$dir/results/cut.json"
# A machine that ends while it sends the second file.
cat >"$dir/machine" <<'END'
#!/bin/sh
printf '%s\n' one '--- results of whole.json' after '--- results of' two '--- results of cut.json' aft
exit 3
END
chmod +x "$dir/machine"
code=0
output=$(../testing/vm/results.sh "$dir/results" "$dir/machine" program) || code=$?
found=$(cd "$dir/results" && grep . ./*)
if [ "$code" != 3 ] || [ "$output" != "$(printf 'one\ntwo')" ] ||
    [ "$found" != "$(printf './cut.json:before\n./whole.json:after')" ]; then
    echo "got $code: $output, $found" >&2
    exit 1
fi
