#!/usr/bin/env bash
# Makes a kind cluster of three nodes with both families, builds the image, loads it, runs the checks
# (run.sh), and deletes the cluster.
#
# E2E_IMAGE must be set. E2E_PROXY_MODE is the mode of both proxies, nftables (if not given) or iptables:
# kind writes it into kube-proxy's configuration. KIND_NODE_IMAGE is the image of the nodes; kind's if not
# given.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=switchyard-e2e
image=localhost/switchyard:e2e
mode=${E2E_PROXY_MODE:-nftables}
export KUBECONFIG=$PWD/target/e2e/kubeconfig

missing=""
for program in docker kind kubectl; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -n "$missing" ]; then
    echo "make e2e-kind needs docker, kind and kubectl; missing here:$missing" >&2
    exit 2
fi
if ! docker info >/dev/null 2>&1; then
    echo "make e2e-kind needs a Docker engine, and docker reaches none" >&2
    exit 2
fi
if [ -z "${E2E_IMAGE:-}" ]; then
    echo "E2E_IMAGE is not set: an agnhost image of Kubernetes' tests (docs/e2e.md)" >&2
    exit 2
fi

case $mode in
    nftables | iptables) ;;
    *)
        echo "E2E_PROXY_MODE is nftables or iptables, not $mode" >&2
        exit 2
        ;;
esac
mkdir -p target/e2e
scripts/install-tools.sh cc
# The variants of the image are called like the modes that they are for.
deploy/build-image.sh -v "$mode" -t "$image" -o target/e2e/switchyard.oci.tar

# A cluster that was left by a run that was killed goes, too.
delete() { kind delete cluster --name "$cluster" --kubeconfig "$KUBECONFIG"; }
delete
# The cluster must not exist any more, so a state of it is of no use.
rm -rf target/e2e/state
trap delete EXIT
cat >target/e2e/kind.yaml <<END
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking:
  ipFamily: dual
  kubeProxyMode: $mode
nodes:
  - role: control-plane
  - role: worker
  - role: worker
END
kind create cluster --name "$cluster" --config target/e2e/kind.yaml --kubeconfig "$KUBECONFIG" \
    --wait 180s ${KIND_NODE_IMAGE:+--image "$KIND_NODE_IMAGE"}
kind load image-archive target/e2e/switchyard.oci.tar --name "$cluster"
# Where this machine has the image of the checks, the nodes need not pull it.
if docker image inspect "$E2E_IMAGE" >/dev/null 2>&1; then
    kind load docker-image "$E2E_IMAGE" --name "$cluster"
fi
# In the background, so that a signal reaches it at once.
E2E_STATE=$PWD/target/e2e/state IMAGE=$image e2e/run.sh run &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' INT TERM HUP
status=0
wait "$run" || status=$?
# `wait` returns for a signal, too.
wait "$run" 2>/dev/null || true
exit "$status"
