#!/bin/sh
# Tests check-advisories.sh with a fake cargo-deny: `FETCH` and `CHECK` are the exit codes of its two
# subcommands.
set -eu
cd "$(dirname "$0")"

fake=$(mktemp -d)
trap 'rm -rf "$fake"' EXIT
cat > "$fake/cargo-deny" <<'END'
#!/bin/sh
case "$*" in
    *"fetch db") echo "no route to host" >&2; exit "$FETCH" ;;
    *"check --disable-fetch advisories") echo "checked"; exit "$CHECK" ;;
esac
echo "unexpected: $*" >&2
exit 99
END
chmod +x "$fake/cargo-deny"

# expect EXIT-CODE TEXT: runs the script, and compares.
expect() {
    code=0
    output=$(PATH="$fake:$PATH" ./check-advisories.sh 2>&1) || code=$?
    case "$code $output" in
        "$1 "*"$2"*) ;;
        *)
            echo "FETCH=$FETCH CHECK=$CHECK: expected exit code $1 and \"$2\", got $code: $output" >&2
            exit 1
            ;;
    esac
}

export FETCH CHECK
# What is skipped here is no part of a run of the tests.
export SWITCHYARD_SKIPPED="$fake/skipped"
FETCH=0 CHECK=0; expect 0 "checked"
FETCH=0 CHECK=2; expect 2 "checked"
FETCH=1 CHECK=0; expect 0 "NOT CHECKED, the database cannot be fetched:
no route to host"
# After a failed fetch, the check is not run.
FETCH=1 CHECK=2; expect 0 "NOT CHECKED"
