# shellcheck shell=bash
# Upstream's own tests, if E2E_TEST names their program.

if [ -n "${E2E_TEST:-}" ]; then
    check upstream "The program of Kubernetes' end-to-end tests passes the tests that E2E_TEST_FOCUS chooses" \
        "${E2E_TEST_SECONDS:-7200}"
    upstream() {
        "$E2E_TEST" --kubeconfig="$KUBECONFIG" --provider=skeleton --disable-log-dump \
            --ginkgo.no-color --ginkgo.timeout="$((${E2E_TEST_SECONDS:-7200} - 60))s" \
            --ginkgo.focus="${E2E_TEST_FOCUS:-\\[sig-network\\].*(Services|Networking Granular Checks|DNS)}" \
            --ginkgo.skip="${E2E_TEST_SKIP:-\\[(Serial|Disruptive|Slow|Flaky|Feature:[^]]*)\\]}"
    }
fi
