# shellcheck shell=bash
# ClientIP affinity. The Service forgets a client after AFFINITY_SECONDS.

# one_server ADDRESS: prints the only server that answers many requests.
one_server() {
    local seen
    seen=$(served_by affinity "$(any_pod)" 15 "$1") || {
        echo "$seen"
        return 1
    }
    [ "$(echo "$seen" | wc -l)" -eq 1 ] || {
        echo "one client, several servers: $(echo "$seen" | tr '\n' ' ')"
        return 1
    }
    echo "$seen"
}

check affinity "ClientIP affinity: a client stays with its server"
affinity() {
    local address
    for address in $(cluster_ips affinity); do
        within "$SETTLE_SECONDS" one_server "$address" || return 1
    done
}

# Of three servers, another one is drawn in two of three cases: 12 tries fail in 2 of a million runs.
check affinity-expires "ClientIP affinity: a client that was idle for the timeout gets any server"
affinity_expires() {
    local address first now i
    address=$(cluster_ips affinity | cut -d' ' -f1)
    first=$(within "$SETTLE_SECONDS" one_server "$address") || {
        echo "$first"
        return 1
    }
    for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
        sleep $((AFFINITY_SECONDS + 2))
        now=$(served_by affinity "$(any_pod)" 1 "$address") || {
            echo "$now"
            return 1
        }
        [ "$now" = "$first" ] || return 0
    done
    echo "still $first after $i times $((AFFINITY_SECONDS + 2)) idle seconds"
    return 1
}
