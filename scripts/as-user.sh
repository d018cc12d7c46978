#!/bin/sh
# Runs a command as a user who has no rights and owns nothing. Root runs this.
#
#   as-user.sh COMMAND [ARGUMENT ...]
set -eu

[ $# -gt 0 ] || { echo "usage: as-user.sh COMMAND [ARGUMENT ...]" >&2; exit 2; }
user() {
    env HOME=/nonexistent setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}
if user test -x "$PWD" 2>/dev/null; then
    user "$@"
else
    # The working directory is below one that belongs to root, such as root's home. So the user may read
    # everything, but still write nothing.
    user --inh-caps=+dac_read_search --ambient-caps=+dac_read_search "$@"
fi
