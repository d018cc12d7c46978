#!/bin/sh
# Tests that testing/vm/run.sh boots a machine again that stops before its first program, with an emulator that only
# does that.
set -eu
vm=$(cd "$(dirname "$0")/../testing/vm" && pwd)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/vm"
cat "$vm/fetch.sh" "$vm/init" | cksum >"$dir/vm/complete"
# Stops as often as the file has lines, then ends as a machine does whose command ended with 7.
cat >"$dir/bin/qemu-system-x86_64" <<'END_OF_EMULATOR'
#!/bin/sh
run=$(printf '%s\n' "$@" | sed -n 's/^local,path=\(.*\),mount_tag=run,.*/\1/p')
echo "boot of $(wc -l <"$STOPS")" >"$run/console"
if [ -s "$STOPS" ]; then
    sed -i 1d "$STOPS"
    exec sleep 60
fi
: >"$run/begun"
sleep 2
echo 7 >"$run/status"
END_OF_EMULATOR
chmod +x "$dir/bin/qemu-system-x86_64"

# Runs the machine, which stops so often, and compares the exit status and how often the script reports it.
check() {
    stops=$1 status=$2
    seq "$stops" >"$dir/stops"
    code=0
    STOPS="$dir/stops" PATH="$dir/bin:$PATH" VM_DIR="$dir/vm" TMPDIR="$dir" BOOT_SECONDS=1 \
        "$vm/run.sh" true 2>"$dir/errors" || code=$?
    reports=$(grep -c '^boot of ' "$dir/errors" || :)
    if [ "$code" != "$status" ] || [ "$reports" != "$stops" ]; then
        echo "a machine that stops $stops times: $code, $reports reports:" >&2
        cat "$dir/errors" >&2
        exit 1
    fi
}
check 0 7
check 2 7
check 3 125
