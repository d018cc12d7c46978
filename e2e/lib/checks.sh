# shellcheck shell=bash
# The list of checks, how one is run, and the table of their results.
#
# A check is a function. It returns 0 if what its sentence says is so; $SKIP if the cluster has nothing to
# check it with; anything else if it is not so, and then prints what it has seen.

SKIP=77
CHECKS=""
LONGEST=0

# check NAME SENTENCE [SECONDS]: declares the check of the function NAME, with _ for -.
check() {
    CHECKS="$CHECKS $1"
    eval "sentence_${1//-/_}=\$2 limit_${1//-/_}=\${3:-$CHECK_SECONDS}"
    [ "${#1}" -le "$LONGEST" ] || LONGEST=${#1}
}

# attribute sentence|limit NAME
attribute() {
    local variable=${1}_${2//-/_}
    echo "${!variable}"
}

list_checks() {
    local name
    for name in $CHECKS; do
        printf '%s\t%s\n' "$name" "$(attribute sentence "$name")"
    done
}

# Whether the checks that E2E_CHECKS names exist.
check_names() {
    local name
    for name in ${E2E_CHECKS:-}; do
        case "$CHECKS " in
            *" $name "*) ;;
            *) fail "E2E_CHECKS: there is no check $name; e2e/run.sh list prints them" ;;
        esac
    done
}

# skip REASON: for the end of a check.
skip() {
    echo "$*"
    return "$SKIP"
}

# record PHASE NAME RESULT TEXT
record() {
    echo "$3" >"$RESULTS/$1.$2"
    say "$(printf "%-${LONGEST}s  %s%s" "$2" "$3" "${4:+  ($4)}")"
}

result() { cat "$RESULTS/$1.$2" 2>/dev/null || echo -; }

# run_checks PHASE: runs all that were chosen. A failure does not end the run.
run_checks() {
    local phase=$1 name status log text
    for name in ${E2E_CHECKS:-$CHECKS}; do
        log=$RESULTS/$phase.$name.log
        bounded "$(attribute limit "$name")" "${name//-/_}" >"$log" 2>&1
        status=$?
        text=$(tail -n 1 "$log" | cut -c1-300)
        case $status in
            0) record "$phase" "$name" ok ;;
            "$SKIP") record "$phase" "$name" skipped "$text" ;;
            124) record "$phase" "$name" FAILED "not done after $(attribute limit "$name") s; $text" ;;
            *) record "$phase" "$name" FAILED "${text:-ended with status $status}" ;;
        esac
    done
}

# Prints the table. Returns 1 if something failed that did not fail with the original proxy.
report() {
    local name before with after verdict status=0
    printf "\n%-${LONGEST}s  %-10s  %-10s  %-10s\n" check original switchyard again
    for name in ${E2E_CHECKS:-$CHECKS} swap; do
        before=$(result original "$name") with=$(result switchyard "$name") after=$(result again "$name")
        verdict=""
        case $before/$with/$after in
            FAILED/ok/*) verdict="failed before, mended" ;;
            FAILED/*) verdict="failed before, too" ;;
            */ok/ok | */ok/- | */ok/noted | skipped/skipped/skipped | -/skipped/- | -/-/- | -/noted/*) ;;
            *)
                verdict="<--"
                status=1
                ;;
        esac
        printf "%-${LONGEST}s  %-10s  %-10s  %-10s  %s\n" "$name" "$before" "$with" "$after" "$verdict"
    done
    echo
    return "$status"
}
