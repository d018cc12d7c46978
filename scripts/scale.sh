#!/bin/sh
# Measures what the program takes with generated clusters, in a network namespace of its own, with a genuine API server
# where KUBE_APISERVER and ETCD name the programs, else with the stand-in for it: time and CPU time until all is programmed, memory, and then one change each 20 ms. Needs root.
#
#   [DOC=docs/performance.md] [MODE=nftables] scripts/scale.sh [SHAPE ...]
#
# A shape is SERVICESxENDPOINTS, or several, such as 50x250+575x30. SWITCHYARD names another program to measure. Where
# KUBE_PROXY names kube-proxy, that is measured as well, with the shapes in KUBE_PROXY_SHAPES, for which it takes
# minutes. MODE is the mode of both; in ipvs mode they compare each five seconds what the kernel has, so that changes
# meet that, and wait for nothing else. DOC is written besides, with a plot in a file of the same name in
# docs/images. SETTLE is the number of seconds from the first sync to the readings, and CHANGES that of changes. LIMIT
# is the number of seconds that a first sync may take, or the one after the changes; a row has what there is then.
#
# Resident memory contains the program's text, as VmRSS does. The memory of the kernel is what unreclaimable slabs and
# per-CPU areas have grown by, of the whole machine. Percentiles are interpolated in buckets, as Prometheus does.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 1000x5 10000x5 50000x2 100000x1 50000x10 5000x50 2000x250 50x250+575x30+7450x5
if [ -z "${SCALE_INSIDE:-}" ]; then
    exec env SCALE_INSIDE=1 unshare --net "$0" "$@"
fi
ip link set lo up

work=$(mktemp -d)
processes=
# shellcheck disable=SC2086
trap 'kill $processes 2>/dev/null || true; rm -rf "$work"' EXIT
changes=${CHANGES:-500}
mode=${MODE:-nftables}

limit=${LIMIT:-600}

# Waits until a command succeeds, and fails when the time is up.
until_true() {
    end=$(($(date +%s) + limit))
    until "$@"; do
        [ "$(date +%s)" -lt $end ] || { echo "in vain: $*" >&2; return 1; }
        sleep 0.05
    done
}
metrics() { curl --silent --max-time 60 http://127.0.0.1:10249/metrics; }
has_synced() {
    kill -0 "$proxy" || { cat "$log" >&2; exit 1; }
    # Kube-proxy 1.30 has one time of both families, and syncs IPv4 first.
    metrics | grep -Eq '^kubeproxy_sync_proxy_rules_last_timestamp_seconds(\{ip_family="IPv4"\})? [1-9]'
}
# Whether syncs have been counted since the first reading.
has_counted() {
    metrics >"$work/after"
    awk -v name="$1_count" 'index($0, name) == 1 { sum += FNR == NR ? -$2 : $2 } END { exit sum <= 0 }' \
        "$work/before" "$work/after"
}
mib() { awk -v name="$1:" '$1 == name { printf "%.0f", $2 / 1024 }' "/proc/$proxy/status"; }
kernel() { awk '/^(SUnreclaim|Percpu):/ { sum += $2 } END { printf "%.0f", sum / 1024 }' /proc/meminfo; }
# User and system time in seconds, with that of programs that the process ran, such as nft and iptables-restore.
cpu() { awk -v hertz="$(getconf CLK_TCK)" '{ printf "%.3f", ($14 + $15 + $16 + $17) / hertz }' "/proc/$proxy/stat"; }
now() { date +%s.%N; }
calc() { awk "BEGIN { printf \"$1\", $2 }"; }

# A percentile of a histogram, of what came between two readings, in milliseconds.
percentile() {
    awk -v name="$1_bucket" -v part="$2" '
        index($0, name) == 1 {
            match($0, /le="[^"]*"/)
            le = substr($0, RSTART + 4, RLENGTH - 5)
            if (FNR == NR) { before[$1] = $2; next }
            if (!(le in count)) order[++n] = le
            count[le] += $2 - before[$1]
        }
        END {
            rank = part * count["+Inf"]; low = 0; below = 0
            for (i = 1; i <= n; i++) {
                le = order[i]
                if (count[le] >= rank && rank > 0) {
                    if (le == "+Inf") { printf ">%.0f", 1000 * low; exit }
                    value = 1000 * (low + (le - low) * (rank - below) / (count[le] - below))
                    printf value < 100 ? "%.2g" : "%.0f", value; exit
                }
                low = le; below = count[le]
            }
            printf "-"
        }' "$work/before" "$work/after"
}

# The mean of a histogram, of what came between two readings, in milliseconds.
mean() {
    awk -v name="$1" '
        index($0, name "_sum") == 1 || index($0, name "_count") == 1 {
            is_sum = index($0, name "_sum") == 1
            sum[is_sum] += FNR == NR ? -$2 : $2
        }
        END { if (sum[0] > 0) printf "%.1f", 1000 * sum[1] / sum[0]; else printf "-" }' "$work/before" "$work/after"
}

# Measures one program with one shape, and prints the fields of a row.
measure() {
    program=$1 histogram=$2 shape=$3
    shift 3
    config=$work/kubeconfig log=$work/log
    rm -f "$config" "$log"
    target/release/api-standin "$config" --cluster "$shape" --change-every 20 >"$work/out" &
    server=$! processes=$!
    until_true grep -q server: "$config" 2>/dev/null
    slab=$(kernel) start=$(now)
    "$program" --kubeconfig "$config" --hostname-override node-0 --proxy-mode "$mode" \
        --ipvs-sync-period 5s --ipvs-min-sync-period 0s --healthz-bind-address 127.0.0.1:10256 "$@" >"$log" 2>&1 &
    proxy=$! processes="$processes $!"
    if ! until_true has_synced; then
        printf '%s|> %s|%s|%s|%s|%s|-|-|-|-|-|-\n' "$shape" "$limit" "$(calc %.2f "$(cpu)")" "$(mib VmRSS)" "$(mib VmHWM)" \
            $(($(kernel) - slab))
        end_measure
        return
    fi
    synced=$(calc %.2f "$(now) - $start") used=$(cpu)
    sleep "${SETTLE:-8}"
    settled=$(mib VmRSS) peak=$(mib VmHWM) slab=$(($(kernel) - slab)) quiet=$(cpu)
    sleep 5
    idle=$(calc %.0f "1000 * ($(cpu) - $quiet)") quiet=$(cpu)
    metrics >"$work/before"
    kill -USR1 "$server"
    sleep "$(calc %.2f "$changes * 0.02")"
    until_true has_counted "$histogram" || true
    each=$(calc %.2f "1000 * ($(cpu) - $quiet) / $changes")
    programming=kubeproxy_network_programming_duration_seconds
    printf '%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s\n' "$shape" "$synced" "$(calc %.2f "$used")" "$settled" "$peak" "$slab" \
        "$idle" "$(percentile "$histogram" 0.5)" "$(percentile "$histogram" 0.99)" "$each" \
        "$(percentile $programming 0.99)" "$(mean $programming)"
    end_measure
}
end_measure() {
    kill "$proxy" "$server"
    wait "$proxy" "$server" 2>/dev/null || true
    processes=
    if [ "$mode" = nftables ]; then nft flush ruleset; else "$program" --cleanup >>"$log" 2>&1; fi
}

columns='shape|synced s|CPU s|settled MiB|peak MiB|kernel MiB|idle ms|p50 ms|p99 ms|CPU ms|SLI ms|gone ms'
row() { printf '%-24s %9s %7s %12s %9s %11s %8s %7s %7s %7s %7s %7s\n' "$@"; }
rows() {
    while IFS='|' read -r shape synced used settled peak slab idle p50 p99 each sli gone; do
        row "$shape" "$synced" "$used" "$settled" "$peak" "$slab" "$idle" "$p50" "$p99" "$each" "$sli" "$gone"
    done
}
echo "$columns" | rows
for shape; do
    measure "${SWITCHYARD:-target/release/switchyard}" switchyard_change_latency_seconds "$shape" | tee -a "$work/ours" | rows
done
if [ -n "${KUBE_PROXY:-}" ]; then
    echo 'kube-proxy'
    for shape in ${KUBE_PROXY_SHAPES:-1000x5 10000x5}; do
        measure "$KUBE_PROXY" kubeproxy_sync_proxy_rules_duration_seconds "$shape" --conntrack-max-per-core 0 | tee -a "$work/theirs" | rows
    done
fi
[ -n "${DOC:-}" ] || exit 0

# The same as a page.
table() {
    echo "$columns" | sed 's/|/ | /g; s/^/| /; s/$/ |/'
    echo '|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|'
    sed 's/|/ | /g; s/^/| /; s/$/ |/' "$1"
}
plot() {
    awk -F'|' '
        FILENAME != last { last = FILENAME; who = ++files == 1 ? "" : "kube-proxy " }
        { n++; label[n] = who $1; memory[n] = $4; time[n] = $3; class[n] = files }
        { if ($4 > most) most = $4; if ($3 > longest) longest = $3 }
        function panel(x, title, values, unit, max,    i) {
            printf "<text x=\"%d\" y=\"20\" class=\"head\">%s</text>\n", x, title
            for (i = 1; i <= n; i++) {
                printf "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"14\" class=\"c%d\"/>", x, 10 + 24 * i, 200 * values[i] / max, class[i]
                printf "<text x=\"%.1f\" y=\"%d\">%s %s</text>\n", x + 6 + 200 * values[i] / max, 22 + 24 * i, values[i], unit
            }
        }
        END {
            printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"820\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", 40 + 24 * n
            print "<style>text{fill:#24292f}.head{font-weight:bold}.c1{fill:#2f81f7}.c2{fill:#d29922}" \
                "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>"
            for (i = 1; i <= n; i++) printf "<text x=\"0\" y=\"%d\">%s</text>\n", 22 + 24 * i, label[i]
            panel(190, "resident memory, settled", memory, "MiB", most)
            panel(510, "CPU time until all is programmed", time, "s", longest)
            print "</svg>"
        }' "$@"
}
# What is written by hand is kept.
by_hand=$(sed -n '/^<!-- by hand -->$/,$p' "$DOC" 2>/dev/null || true)
plot=docs/images/$(basename "$DOC" .md).svg
mkdir -p docs/images
set -- "$work/ours"
[ ! -f "$work/theirs" ] || set -- "$@" "$work/theirs"
plot "$@" >"$plot"
{
    echo '# Performance'
    echo
    echo "Written by \`make scale\` on $(date -u +%Y-%m-%d): $(nproc) processors ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)), $(uname -s) $(uname -r), $mode mode."
    echo
    echo "![Memory and CPU time]($(echo "$plot" | sed 's,^docs/,,'))"
    echo
    table "$work/ours"
    if [ -f "$work/theirs" ]; then
        printf '\n## kube-proxy\n\nThe same with %s; its percentiles are of syncs alone, without the wait for the next one.\n\n' "$("$KUBE_PROXY" --version 2>/dev/null | tr 'K' 'k' | sed 's/ubernetes/ube-proxy/')"
        table "$work/theirs"
    fi
    case ${KUBE_APISERVER:-} in
        '') server='the stand-in for the API server in this repository' ;;
        *) server="a genuine API server ($("$KUBE_APISERVER" --version | sed 's/Kubernetes //')) whose etcd had the objects" ;;
    esac
    sed "s|SERVER|$server|" <<'END'

## How to read it

- Shapes are numbers of Services x endpoints each; the last one is that of the Kubernetes project's load test.
- Objects come from SERVER, on the same processors, without latency.
- **synced**: from the start of the program to the first commit of everything; **CPU**: user and system time until then.
- **settled**, **peak**: resident memory with the program's text, some seconds later and at most until then. **kernel**: what the
  kernel's unreclaimable slabs have grown by, the sets of nftables above all.
- **idle**: CPU time of five seconds in which nothing changes.
- Then 50 EndpointSlices change in a second, each of another Service: **p50**, **p99** are the times from the arrival of
  a change to its commit (`switchyard_change_latency_seconds`, interpolated), **CPU** is the time that one change costs.
- **SLI**: network programming latency as ClusterLoader2 computes it, the p99 of `kubeproxy_network_programming_duration_seconds`.
  Its first bucket ends at 250 ms, in which all may lie: then it is 248. **gone**: the mean of the same, which no bucket
  rounds. Each change moves an endpoint, so that this is how long connections still went to one after the API server
  had its removal, without what the cluster takes before that. The time that another program waits for the kernel's
  lock during changes is measured by `cargo bench -p switchyard-nft --bench disturbed`.
- Machines differ, and shared ones are noisy: compare figures of one run.
END
    [ -z "$by_hand" ] || printf '\n%s\n' "$by_hand"
} >"$DOC"
[ "$DOC" = docs/performance.md ] || exit 0

# README.md has some columns of it between two comments.
{
    sed '/^<!-- make scale -->$/q' README.md
    echo "Measured by \`make scale\` on $(date -u +%Y-%m-%d) with $(nproc) processors, Services x endpoints:"
    echo
    echo '| | start to all programmed | one change, p50 and p99 | resident memory |'
    echo '|---|--:|--:|--:|'
    awk -F'|' '$1 ~ /^10*x/ { printf "| %s | %s s | %s and %s ms | %s MiB |\n", $1, $2, $8, $9, $4 }' "$work/ours"
    echo
    sed -n '/^<!-- make scale ends -->$/,$p' README.md
} >"$work/readme"
cat "$work/readme" >README.md
