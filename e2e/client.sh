#!/bin/sh
# Runs inside the pods of the end-to-end run: sends requests, and prints one line for each.
#
#   client.sh get COUNT URL...         `ok BODY`, `refused`, `timeout` or `failed CODE` (curl's exit code)
#   client.sh status URL...            the HTTP status, or `refused`, `timeout`, `failed CODE`
#   client.sh udp ADDRESS PORT         `ok HOST NAME` of the server that answered, or `timeout`
#   client.sh dns udp|tcp TYPE SERVER  the addresses of kubernetes.default.svc, as that server knows them
#   client.sh load-start SECONDS URL...  requests in the background, for so long at most
#   client.sh load-stop                `TOTAL LOST`, and the last requests that were lost
#   client.sh not-ready | ready        what the pod's readiness probe finds from now on
#   client.sh is-ready PORT            the readiness probe of a server: exit status 0 if it is ready
#
# A request takes three seconds at most.
set -u
directory=${E2E_CLIENT_DIRECTORY:-/tmp}

# Prints what became of a request: curl's exit code, and what it has printed.
outcome() {
    case $1 in
        0) echo "ok $2" ;;
        7) echo refused ;;
        28) echo timeout ;;
        *) echo "failed $1" ;;
    esac
}

# Sends a request by a connection of its own.
get() {
    body=$(curl -s -g --noproxy '*' --connect-timeout 2 --max-time 3 "$1" 2>/dev/null)
    outcome $? "$body"
}

# Prints the status of an answer, whatever its body and certificate.
status() {
    code=$(curl -s -k -g --noproxy '*' --connect-timeout 2 --max-time 3 -o /dev/null \
        -w '%{http_code}' "$1" 2>/dev/null)
    line=$(outcome $? "$code")
    echo "${line#ok }"
}

# Sends requests until there is a file `stop`, or for so many seconds.
load() {
    end=$(($(date +%s) + $1))
    shift
    total=0 lost=0
    while [ ! -e "$directory/stop" ] && [ "$(date +%s)" -lt "$end" ]; do
        for url in "$@"; do
            line=$(get "$url")
            total=$((total + 1))
            case $line in
                ok*) ;;
                *)
                    lost=$((lost + 1))
                    echo "$(date +%T) $url $line" >>"$directory/lost"
                    ;;
            esac
        done
        sleep 0.05
    done
    echo "$total $lost" >"$directory/counted"
}

command=$1
shift
case $command in
    get)
        count=$1
        shift
        for url in "$@"; do
            i=0
            while [ "$i" -lt "$count" ]; do
                get "$url"
                i=$((i + 1))
            done
        done
        ;;
    status) for url in "$@"; do status "$url"; done ;;
    udp)
        name=$(echo hostname | nc -u -w 2 "$1" "$2" 2>/dev/null | head -n 1)
        if [ -n "$name" ]; then echo "ok $name"; else echo timeout; fi
        ;;
    dns)
        case $1 in
            tcp) transport=+tcp ;;
            *) transport=+notcp ;;
        esac
        # The cluster's domain is in the search path of every pod: NAMESPACE.svc.DOMAIN svc.DOMAIN ...
        domain=$(sed -n 's/^search .* svc\.\([^ ]*\).*/\1/p' "${E2E_RESOLV_CONF:-/etc/resolv.conf}")
        dig +short +time=2 +tries=2 "$transport" "@$3" "kubernetes.default.svc.$domain." "$2"
        ;;
    load-start)
        rm -f "$directory/stop" "$directory/lost" "$directory/counted"
        # Nothing of it may keep the caller's pipes open, or the caller waits for its end.
        (
            exec </dev/null >/dev/null 2>&1
            load "$@"
        ) &
        ;;
    load-stop)
        touch "$directory/stop"
        i=0
        # Each request of the round that is under way may take three seconds.
        while [ ! -e "$directory/counted" ] && [ "$i" -lt 200 ]; do
            sleep 0.1
            i=$((i + 1))
        done
        cat "$directory/counted" || echo "0 0"
        tail -n 5 "$directory/lost" 2>/dev/null
        true
        ;;
    not-ready) touch "$directory/not-ready" ;;
    ready) rm -f "$directory/not-ready" ;;
    is-ready)
        # A probe that does not ask the port would find a server ready that does not listen yet.
        [ ! -e "$directory/not-ready" ] || exit 1
        case $(get "http://127.0.0.1:$1/hostname") in
            ok*) ;;
            *) exit 1 ;;
        esac
        ;;
    *)
        echo "client.sh: there is no command $command" >&2
        exit 2
        ;;
esac
