# shellcheck shell=bash
# Endpoints that come, go, and become ready.

# serves SERVICE COUNT EXPECTED...: exactly these servers answer.
serves() {
    local service=$1 count=$2 seen expected
    shift 2
    expected=$(printf '%s\n' "$@" | sort -u)
    seen=$(served_by "$service" "$(any_pod)" "$count") || {
        echo "$seen"
        return 1
    }
    [ "$seen" = "$expected" ] || {
        echo "$service: $(echo "$seen" | tr '\n' ' ')answered, not $(echo "$expected" | tr '\n' ' ')"
        return 1
    }
}

# with_unready CHECK...: makes one of the two servers of `unready` not ready, checks, and makes it ready.
with_unready() {
    local status=0
    # shellcheck disable=SC2046
    set -- "$@" $(pods_of unready)
    # A check that was ended may have left the other one.
    in_pod "$3" ready || return 1
    in_pod "$2" not-ready || return 1
    "$@" || status=1
    in_pod "$2" ready || return 1
    [ "$status" = 0 ] || return 1
    within "$SETTLE_SECONDS" serves unready 30 "$2" "$3"
}

leaves() { within "$SETTLE_SECONDS" serves unready 12 "$2"; }

check readiness "A server that is not ready gets no connections, until it is ready again"
readiness() { with_unready leaves; }

stays() {
    # It has left the other Service: so the change has arrived.
    leaves "$@" && serves published 30 "$@"
}

check publish-not-ready "A Service with publishNotReadyAddresses keeps servers that are not ready"
publish_not_ready() { with_unready stays; }

# scaled_to COUNT: so many servers, and no others, answer.
scaled_to() {
    local pods
    pods=$(ours get pods --selector=app=scaled -o 'jsonpath={range .items[*]}{.metadata.name}{" "}{.metadata.deletionTimestamp}{"\n"}{end}' |
        sed -n 's/^\([^ ]*\) *$/\1/p')
    [ "$(echo "$pods" | wc -l)" -eq "$1" ] || {
        echo "not yet $1 pods: $pods"
        return 1
    }
    # shellcheck disable=SC2086
    serves scaled 60 $pods
}

scale() { ours scale deployment/scaled --replicas="$1" && within $((SETTLE_SECONDS * 2 + 10)) scaled_to "$1"; }

check scaling "Servers come and go under a loop of connections: new ones are used, and no connection is lost" 360
scaling() {
    local status=0
    scale 2 || return 1
    # shellcheck disable=SC2046
    load_start $(load_urls scaled) || return 1
    scale 5 && scale 2 || status=1
    load_stop || status=1
    # What was lost is the last line.
    ours scale deployment/scaled --replicas=2 >/dev/null || status=1
    return "$status"
}
