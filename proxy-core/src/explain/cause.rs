//! Why traffic is not served, or an endpoint gets none: the code and the remedy of each cause.

use crate::model::Code;

/// A cause, which a page under its code describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) code: Code,
    pub(super) remedy: &'static str,
}

macro_rules! causes {
    ($($name:ident $code:expr, $remedy:literal;)*) => {
        $(pub(super) const $name: Cause = Cause { code: $code, remedy: $remedy };)*
    };
}

causes! {
    NO_ENDPOINT Code::new("SWY0101"),
        "kubectl get endpointslices -l kubernetes.io/service-name=NAME; look why no pod is ready";
    NONE_HERE Code::new("SWY0102"),
        "run a pod on this node, send the traffic to a node that has one, or use the policy Cluster";
    NO_SERVICE Code::new("SWY0103"),
        "check namespace and name; headless Services, ExternalName and those of another proxy are not proxied";
    NO_OWNER Code::new("SWY0104"),
        "kubectl get services -A shows the addresses of all Services";
    NO_PORT Code::new("SWY0105"),
        "kubectl get service shows the ports of the Service, and their protocols";
    SOURCE_RANGE Code::new("SWY0106"),
        "add the client to spec.loadBalancerSourceRanges, or use the cluster IP";
    CONFLICT Code::new("SWY0107"),
        "give one of the Services another address or port";
    REFUSED Code::new("SWY0108"),
        "see the message of the node; the port is tried again";
    NODE_ADDRESS Code::new("SWY0109"),
        "use another address of the node, or add this one to nodePortAddresses";
    NOT_READY Code::new("SWY0110"),
        "kubectl describe pod shows why the pod is not ready";
    TERMINATING Code::new("SWY0111"),
        "none is needed: the pod is about to end";
    HINTS Code::new("SWY0112"),
        "none is needed, unless spec.trafficDistribution is not meant";
    ELSEWHERE Code::new("SWY0113"),
        "none is needed, unless the policy Local is not meant";
    DRAINED Code::new("SWY0114"),
        "set another weight in switchyard/weight or switchyard/weights of the EndpointSlice";
    OTHER_PORT Code::new("SWY0115"),
        "name the port alike in the Service and its EndpointSlices; in a pod, the targetPort's name";
    OTHER_FAMILY Code::new("SWY0116"),
        "set spec.ipFamilyPolicy: PreferDualStack if the other family is meant, too";
    LAST_RESORT Code::new("SWY0117"),
        "look why no pod is ready; once these pods end, connections are refused";
    UNUSABLE Code::new("SWY0118"),
        "correct the field";
    NOT_SYNCED Code::new("SWY0119"),
        "wait, or look in the log for what the first sync lacks";
    STUCK Code::new("SWY0120"),
        "look at the pod, at its node, and at what drops packets between; only new connections go elsewhere";
    UNSYNCED Code::new("SWY0121"),
        "wait, or see the reason; the proxy tries again, and old rules serve meanwhile";
    DIFFERS Code::new("SWY0122"),
        "wait a second for the repair; in nftables mode, switchyard verify shows all differences; the log has who made them";
}
