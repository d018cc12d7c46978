//! The table of flags: the flags of kube-proxy v1.37, the flags of Switchyard alone, and flags of
//! old releases of kube-proxy that manifests still carry.

use switchyard_core::model::LbAlgorithm;

use super::flag::{
    Flag,
    Kind::{self, *},
    Sets::*,
    Status,
};

/// The help text of `--proxy-mode`.
const MODE: &str = "nftables, iptables, ipvs or userspace; if empty, the first of nftables, iptables \
                    and userspace that this node can run";
const IGNORED: &str = "it has no effect";
const KLOG: &str = "it has no effect: the log goes to standard error";
const PORT: &str = "use the address with a port instead";

const LB_ALGORITHMS: [&str; LbAlgorithm::ALL.len()] = {
    let mut names = [""; LbAlgorithm::ALL.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = LbAlgorithm::ALL[index].as_str();
        index += 1;
    }
    names
};

/// Returns a flag of an old release, which has no effect.
const fn gone(name: &'static str, kind: Kind, why: &'static str) -> Flag {
    Flag::new(name, kind, "", Nothing, "").status(Status::Gone(why))
}

// With a flag in one line or two, the list reads as a table.
#[rustfmt::skip]
pub static FLAGS: &[Flag] = &[
    // What the program does.
    Flag::new("config", Text, "", Program, "The KubeProxyConfiguration file, YAML or JSON"),
    Flag::new("write-config-to", Text, "", Program,
        "Write the configuration with all defaults to this file, and exit"),
    Flag::new("cleanup", Switch, "false", Program,
        "Remove everything that Switchyard or kube-proxy programmed in the kernel, and exit"),
    Flag::new("init-only", Switch, "false", Program,
        "Set the sysctls, which needs more privileges than proxying, and exit"),
    Flag::new("version", Version, "false", Program,
        "Print the version and exit: raw prints every detail; v1.37.0-SUFFIX is reported as the version instead"),
    Flag::new("manifests", Text, "", Program,
        "Proxy for the Services and EndpointSlices in this directory instead of those of a cluster")
        .status(Status::Ours),
    Flag::new("objects-socket", Text, "", Program,
        "Proxy for the objects that a client sends to this Unix socket, which is made for the program's own user, \
         instead of those of a cluster").status(Status::Ours),
    Flag::new("nft-transport", Word(&["netlink", "json"]), "netlink", Program,
        "How to reach nftables: directly by netlink, or through the nft program by JSON").status(Status::Ours),
    Flag::new("service-proxy-name", Text, "", Program,
        "Serve the Services whose label service.kubernetes.io/service-proxy-name has this value, and no others, beside \
         the cluster's own proxy; in nftables mode only").status(Status::Ours),
    Flag::new("lb-algorithm", Word(&LB_ALGORITHMS), "", Program,
        "How connections are spread over the endpoints of Services whose annotations ask for nothing; if empty, as \
         the mode does: random, in ipvs mode as --ipvs-scheduler names")
        .status(Status::Ours),
    Flag::new("local-socket", Text, "/run/switchyard/proxy.sock", Program,
        "The Unix socket that answers explain, snapshot, top, trace, verify and doctor, for the program's own user \
         alone; served if its directory exists; if empty, there is none. By default that of a proxy with a name is \
         service-proxy-NAME.sock in the same directory").status(Status::Ours),
    Flag::new("ipvs-drain-limit", Limit, "24h0m0s", Program,
        "How long an endpoint that is gone keeps its connections, in ipvs mode; 0 for no limit").status(Status::Ours),
    Flag::new("ipvs-run-estimation", Word(&["true", "false"]), "", Program,
        "Whether the kernel computes rates of virtual servers (net.ipv4.vs.run_estimation), in ipvs mode; if empty, \
         as the node is set").status(Status::Ours),
    Flag::new("userspace-capture", Word(&["nftables", "iptables", "addresses", "loopback"]), "", Program,
        "How traffic reaches the proxy, in userspace mode: by rules that redirect it, by owning the Services' \
         addresses, or at loopback addresses that are printed; if empty, the first other than addresses \
         that this node can run")
        .status(Status::Ours),
    Flag::new("userspace-table", Text, "-", Program,
        "The file for the table of loopback addresses, as a JSON array that is replaced when it changes; - prints \
         a JSON object in a line for each change to standard output").status(Status::Ours),
    Flag::new("userspace-udp-timeout", Limit, "0s", Program,
        "How long a UDP flow lasts without a datagram, in userspace mode; 0 for a minute").status(Status::Ours),
    Flag::new("userspace-connections", Uint32, "0", Program,
        "The most connections and flows at a time, in userspace mode; 0 for as many as the limit of file \
         descriptors allows").status(Status::Ours),
    Flag::new("userspace-drain", Duration, "20s", Program,
        "How long connections may go on after SIGTERM, in userspace mode; 0 ends them at once").status(Status::Ours),
    Flag::new("conntrack-services-period", Limit, "0s", Program,
        "How often to count the entries of connection tracking by Service, which reads the whole table, at most \
         every 10s; the metrics name the ten largest Services; 0 for never").status(Status::Ours),
    Flag::new("flowtable-devices", Text, "", Program,
        "The devices, such as eth0,veth*, between which the kernel forwards packets of Services' connections past all \
         rules, in nftables and iptables mode; if empty, all packets pass the rules").status(Status::Ours),
    // The API server.
    Flag::new("master", Text, "", Program,
        "The URL of the API server; overrides the URL in the kubeconfig"),
    Flag::new("kubeconfig", Text, "", Field("clientConnection.kubeconfig"),
        "The file with the API server's address and credentials"),
    Flag::new("kube-api-content-type", Text, "application/vnd.kubernetes.protobuf",
        Field("clientConnection.contentType"), "The form in which the API server is asked for objects: application/json for JSON"),
    Flag::new("kube-api-burst", Int32, "10", Field("clientConnection.burst"),
        "Requests that may be made in a burst, above the rate"),
    Flag::new("kube-api-qps", Float32, "5", Field("clientConnection.qps"),
        "Rate of requests to the API server, per second; negative for no limit"),
    Flag::new("config-sync-period", Duration, "15m0s", Field("configSyncPeriod"),
        "Ignored: kube-proxy's period for repeating known objects to itself"),
    // The node.
    Flag::new("hostname-override", Text, "", Field("hostnameOverride"),
        "The name of the Node, if it is not the host's").beside_file(),
    Flag::new("bind-address", Ip, "0.0.0.0", Field("bindAddress"),
        "Overrides the Node object's address for that family and makes the family primary"),
    Flag::new("feature-gates", Gates, "", Field("featureGates"),
        "Features to switch on or off; an unknown feature only causes a warning"),
    Flag::new("oom-score-adj", Int32, "-999", Field("oomScoreAdj"),
        "The OOM score adjustment of this process, -1000 (never killed) to 1000 (killed first)"),
    // The servers.
    Flag::new("healthz-bind-address", Listen, "0.0.0.0:10256", Field("healthzBindAddress"),
        "Address that serves health"),
    Flag::new("metrics-bind-address", Listen, "127.0.0.1:10249", Field("metricsBindAddress"),
        "Address that serves metrics"),
    Flag::new("healthz-port", Int32, "10256", PortOf("healthzBindAddress"),
        "The port that serves health if --healthz-bind-address is given without one; 0 disables the server").status(Status::Deprecated(PORT)),
    Flag::new("metrics-port", Int32, "10249", PortOf("metricsBindAddress"),
        "The port that serves metrics if --metrics-bind-address is given without one; 0 is rejected").status(Status::Deprecated(PORT)),
    Flag::new("bind-address-hard-fail", Switch, "false", Field("bindAddressHardFail"),
        "Exit if the address of health or of metrics cannot be bound"),
    Flag::new("profiling", Switch, "false", Field("enableProfiling"),
        "Serve pages for debugging at the address of the metrics, under /debug"),
    Flag::new("show-hidden-metrics-for-version", Text, "", Field("showHiddenMetricsForVersion"),
        "Show metrics that are hidden since this version, which must be one of the two previous minor releases"),
    // Proxying.
    Flag::new("proxy-mode", Text, "", Field("mode"), MODE),
    Flag::new("masquerade-all", Switch, "false", Section("masqueradeAll"),
        "Masquerade all traffic to cluster IPs"),
    Flag::new("cluster-cidr", Text, "", Field("clusterCIDR"),
        "The pods' network, or two of different families separated by a comma"),
    Flag::new("nodeport-addresses", List, "", Field("nodePortAddresses"),
        "Node addresses that serve node ports: networks, and the words primary, localhost and all"),
    Flag::new("detect-local-mode", Text, "", Field("detectLocalMode"),
        "How traffic from local pods is detected: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"),
    Flag::new("pod-bridge-interface", Text, "", Field("detectLocal.bridgeInterface"),
        "The bridge that pods are attached to, for BridgeInterface"),
    Flag::new("pod-interface-name-prefix", Text, "", Field("detectLocal.interfaceNamePrefix"),
        "The prefix of the names of the pods' interfaces, for InterfaceNamePrefix"),
    // One mode.
    Flag::new("iptables-masquerade-bit", Int32, "14", Field("iptables.masqueradeBit"),
        "The bit of the packet mark that requests masquerading, in iptables and ipvs mode"),
    Flag::new("iptables-localhost-nodeports", Switch, "true", Field("iptables.localhostNodePorts"),
        "Serve node ports on 127.0.0.1, too, where nodePortAddresses includes it, in iptables, nftables and userspace mode"),
    Flag::new("iptables-sync-period", Duration, "30s", SectionUnlessIpvs("syncPeriod"),
        "Longest wait before a failed sync is retried, in any mode but ipvs"),
    Flag::new("iptables-min-sync-period", Duration, "1s", SectionUnlessIpvs("minSyncPeriod"),
        "Longest wait between two syncs under load, in any mode but ipvs"),
    Flag::new("ipvs-sync-period", Duration, "30s", IpvsOnly("syncPeriod"),
        "Longest wait before a failed sync is retried, and between full syncs, in ipvs mode"),
    Flag::new("ipvs-min-sync-period", Duration, "1s", IpvsOnly("minSyncPeriod"),
        "Longest wait between two syncs under load, in ipvs mode"),
    Flag::new("ipvs-scheduler", Text, "", Field("ipvs.scheduler"),
        "The kernel's scheduler in ipvs mode; rr if empty"),
    Flag::new("ipvs-exclude-cidrs", List, "", Field("ipvs.excludeCIDRs"),
        "Networks whose virtual servers are never removed, in ipvs mode"),
    Flag::new("ipvs-strict-arp", Switch, "false", Field("ipvs.strictARP"),
        "Answer ARP only for addresses of the interface that received the request, in ipvs mode"),
    Flag::new("ipvs-tcp-timeout", Duration, "0s", Field("ipvs.tcpTimeout"),
        "Timeout of idle TCP connections in ipvs mode; 0 keeps the kernel's"),
    Flag::new("ipvs-tcpfin-timeout", Duration, "0s", Field("ipvs.tcpFinTimeout"),
        "Timeout of TCP connections after a FIN in ipvs mode; 0 keeps the kernel's"),
    Flag::new("ipvs-udp-timeout", Duration, "0s", Field("ipvs.udpTimeout"),
        "Timeout of UDP flows in ipvs mode; 0 keeps the kernel's"),
    // Connection tracking.
    Flag::new("conntrack-max-per-core", Int32, "32768", Field("conntrack.maxPerCore"),
        "Limit of tracked connections for each processor; 0 keeps the kernel's limit"),
    Flag::new("conntrack-min", Int32, "131072", Field("conntrack.min"),
        "Least value of the limit that --conntrack-max-per-core sets"),
    Flag::new("conntrack-tcp-timeout-established", Duration, "24h0m0s",
        Field("conntrack.tcpEstablishedTimeout"),
        "Timeout of tracked idle TCP connections; 0 keeps the kernel's"),
    Flag::new("conntrack-tcp-timeout-close-wait", Duration, "1h0m0s",
        Field("conntrack.tcpCloseWaitTimeout"),
        "Timeout of tracked half-closed TCP connections; 0 keeps the kernel's"),
    Flag::new("conntrack-tcp-be-liberal", Switch, "false", Field("conntrack.tcpBeLiberal"),
        "Do not treat TCP packets outside the window as invalid"),
    Flag::new("conntrack-udp-timeout", Duration, "0s", Field("conntrack.udpTimeout"),
        "Timeout of tracked UDP flows without a reply; 0 keeps the kernel's"),
    Flag::new("conntrack-udp-timeout-stream", Duration, "0s", Field("conntrack.udpStreamTimeout"),
        "Timeout of tracked UDP flows with replies; 0 keeps the kernel's"),
    // Logging.
    Flag::new("v", Uint32, "0", Field("logging.verbosity"), "Verbosity of the log, 0 to 10")
        .short('v').beside_file(),
    Flag::new("vmodule", Levels, "", Field("logging.vmodule"),
        "Verbosity for source files whose names match patterns; text format only").beside_file(),
    Flag::new("logging-format", Text, "text", Field("logging.format"),
        "Format of log lines: text or json").beside_file(),
    Flag::new("log-flush-frequency", Duration, "5s", Field("logging.flushFrequency"),
        "Longest time that buffered log lines wait").beside_file(),
    Flag::new("log-text-split-stream", Switch, "false", Field("logging.options.text.splitStream"),
        "Log errors to standard error and other lines to standard output; needs the gate LoggingAlphaOptions").beside_file(),
    Flag::new("log-json-split-stream", Switch, "false", Field("logging.options.json.splitStream"),
        "The same as --log-text-split-stream, for JSON").beside_file(),
    Flag::new("log-text-info-buffer-size", Quantity, "0",
        Field("logging.options.text.infoBufferSize"),
        "Size of the buffer for lines to standard output, with split streams; needs the gate LoggingAlphaOptions").beside_file(),
    Flag::new("log-json-info-buffer-size", Quantity, "0",
        Field("logging.options.json.infoBufferSize"),
        "The same as --log-text-info-buffer-size, for JSON").beside_file(),
    // kube-proxy has these from a library, and they have no effect there either.
    Flag::new("boot-id-file", Text, "/proc/sys/kernel/random/boot_id", Nothing,
        "Has no effect").beside_file(),
    Flag::new("machine-id-file", Text, "/etc/machine-id,/var/lib/dbus/machine-id", Nothing,
        "Has no effect").beside_file(),
    // Old releases.
    Flag::new("cleanup-iptables", Switch, "", Program, "")
        .status(Status::Gone("it means --cleanup")),
    gone("cleanup-ipvs", Switch, "rules of other modes are always removed"),
    Flag::new("proxy-port-range", Text, "", Field("portRange"), "").status(Status::Gone(IGNORED)),
    gone("udp-timeout", Duration, IGNORED),
    gone("resource-container", Text, IGNORED),
    gone("azure-container-registry-config", Text, IGNORED),
    gone("google-json-key", Text, IGNORED),
    gone("conntrack-max", Int32, "use --conntrack-max-per-core and --conntrack-min"),
    gone("cloud-provider-gce-lb-src-cidrs", List, IGNORED),
    gone("cloud-provider-gce-l7lb-src-cidrs", List, IGNORED),
    gone("logtostderr", Switch, KLOG),
    gone("alsologtostderr", Switch, KLOG),
    gone("stderrthreshold", Text, KLOG),
    gone("log-dir", Text, KLOG),
    gone("log-file", Text, KLOG),
    gone("log-file-max-size", Uint32, KLOG),
    gone("log-backtrace-at", Text, IGNORED),
    gone("add-dir-header", Switch, IGNORED),
    gone("skip-headers", Switch, IGNORED),
    gone("skip-log-headers", Switch, IGNORED),
    gone("one-output", Switch, IGNORED),
];

pub fn named(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}
