//! Layers, fixtures and messages, from the file and the flags to the settings.

use std::{io::Write, time::Duration};

use switchyard_core::{
    config::{LocalPodsConfig, NodePortAddressConfig},
    error::ErrorChain,
    model::LbAlgorithm,
};
use switchyard_sources::kube::ContentType;
use tempfile::NamedTempFile;

use super::*;
use crate::{
    config::{
        flags::Precedence,
        release,
        settings::{ClientSettings, IpvsSettings, MODES, SourceSettings},
        testing::flags,
    },
    klog::LogFormat,
};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// The lines that `kubeadm init` puts into the ConfigMap: everything present, nothing defaulted.
const KUBEADM: &str = include_str!("../../../tests/fixtures/kubeadm.yaml");
/// The same file from `kind create cluster`.
const KIND: &str = include_str!("../../../tests/fixtures/kind.yaml");

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Loads `text` as the file, with these flags besides.
fn with_file(text: &str, arguments: &[&str]) -> Result<Loaded, ConfigError> {
    let file = file(text);
    let config = format!("--config={}", file.path().display());
    let mut all = vec![config.as_str()];
    all.extend(arguments);
    load(&flags("switchyard", &all), &MODES)
}

fn with_flags(arguments: &[&str]) -> Settings {
    load(&flags("switchyard", arguments), &MODES)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
        .settings
}

/// The problem with a file that has these lines.
fn refused(body: &str) -> String {
    let error = with_file(&format!("{HEAD}{body}"), &[]).expect_err(body);
    ErrorChain(&error).to_string()
}

fn cidrs(settings: &Settings) -> String {
    format!("{:?}", settings.node.local_pods)
}

#[test]
fn kubeadms_configuration_is_defaulted() {
    let loaded = with_file(KUBEADM, &["--hostname-override=Node-1"]).unwrap();
    assert_eq!(loaded.warnings, [""; 0]);
    assert_eq!(loaded.named_mode(), None, "the choice is left to us");
    let settings = loaded.settings;
    assert_eq!(settings.node.node_name, "node-1");
    assert_eq!(cidrs(&settings), "ClusterCidr([10.244.0.0/16])");
    assert!(!settings.node.masquerade_all);
    assert_eq!(settings.node.bind_address, None, "0.0.0.0 is no address of the node's");
    // What kube-proxy's iptables mode serves on localhost is served there still.
    assert_eq!(
        settings.node.node_port_addresses,
        [NodePortAddressConfig::Primary, NodePortAddressConfig::Localhost]
    );
    assert!(settings.node.serves_localhost());
    assert_eq!(settings.backend.mode, Mode::NFTABLES);
    assert_eq!(settings.backend.masquerade_bit, 14);
    assert_eq!(settings.periods.sync, Duration::from_secs(30));
    assert_eq!(settings.periods.min_sync, Duration::from_secs(1));
    assert_eq!(settings.servers.healthz.unwrap().to_string(), "0.0.0.0:10256");
    assert_eq!(settings.servers.metrics.to_string(), "127.0.0.1:10249");
    assert!(!settings.servers.bind_hard_fail);
    assert_eq!(settings.log.verbosity, 0);
    assert_eq!(
        settings.source,
        SourceSettings::Cluster(ClientSettings {
            kubeconfig: Some("/var/lib/kube-proxy/kubeconfig.conf".into()),
            master: None,
            user_agent: version::user_agent(Precedence::Flags, release::KUBERNETES),
            content_type: ContentType::Protobuf,
            qps: 5.0,
            burst: 10,
            service_proxy_name: None,
        })
    );
}

#[test]
fn kinds_configuration_is_read_leniently() {
    let loaded = with_file(KIND, &["--hostname-override=kind-control-plane"]).unwrap();
    let [metadata, gate] = &loaded.warnings[..] else { panic!("{:?}", loaded.warnings) };
    assert!(metadata.ends_with("unknown field \"metadata\""), "{metadata}");
    assert_eq!(gate, "unrecognized feature gate: SomeOtherComponentsGate; it has no effect");
    assert_eq!(loaded.settings.backend.mode, Mode::NFTABLES);
    assert_eq!(cidrs(&loaded.settings), "ClusterCidr([10.244.0.0/16, fd00:10:244::/56])");
    assert_eq!(loaded.config.conntrack.max_per_core, Some(0));
    assert_eq!(loaded.config.conntrack.tcp_established_timeout.unwrap().to_string(), "0s");
}

#[test]
fn without_a_file_flags_count() {
    let settings = with_flags(&[
        "--hostname-override= Some.Host ",
        "--proxy-mode",
        "nftables",
        "--cluster-cidr=10.0.0.0/8,fd00::/48",
        "--nodeport-addresses=192.0.2.0/24,010.0.0.0/8",
        "--nodeport-addresses=fd00::/64",
        "--masquerade-all",
        "--bind-address=192.0.2.7",
        "--healthz-bind-address=127.0.0.1",
        "--metrics_bind_address=[::]:9000",
        "--iptables-sync-period=1m",
        "--iptables-min-sync-period=0",
        "--kubeconfig=/k",
        "--master=https://x",
        "--nft-transport=json",
        "--lb-algorithm=source-hash",
        "--bind-address-hard-fail=T",
        "-v=4",
        "--logging-format=json",
    ]);
    assert_eq!(settings.node.node_name, "some.host");
    assert_eq!(cidrs(&settings), "ClusterCidr([10.0.0.0/8, fd00::/48])");
    let ports = format!("{:?}", settings.node.node_port_addresses);
    assert_eq!(ports, "[Cidr(192.0.2.0/24), Cidr(10.0.0.0/8), Cidr(fd00::/64)]");
    assert!(settings.node.masquerade_all);
    assert_eq!(settings.node.bind_address.unwrap().to_string(), "192.0.2.7");
    assert_eq!(settings.servers.healthz.unwrap().to_string(), "127.0.0.1:10256");
    assert_eq!(settings.servers.metrics.to_string(), "[::]:9000");
    assert!(settings.servers.bind_hard_fail);
    assert_eq!(settings.periods.sync, Duration::from_secs(60));
    assert_eq!(settings.periods.min_sync, Duration::ZERO, "zero that was given is zero");
    assert_eq!(settings.backend.nft_transport, NftTransport::Json);
    assert_eq!(settings.node.lb_algorithm, Some(LbAlgorithm::SourceHash));
    assert_eq!(settings.log.format, LogFormat::Json);
    assert_eq!(settings.log.verbosity, 4);
    let SourceSettings::Cluster(client) = settings.source else { panic!("{:?}", settings.source) };
    assert_eq!(client.kubeconfig.unwrap().to_str(), Some("/k"));
    assert_eq!(client.master.as_deref(), Some("https://x"));
}

#[test]
fn userspace_mode_can_serve_a_machine_by_itself() {
    let flags = [
        "--proxy-mode=userspace",
        "--userspace-drain=7s",
        "--userspace-table=/t",
        "--manifests=/m",
    ];
    let given = with_flags(&flags);
    let userspace = &given.backend.userspace;
    assert_eq!(userspace.drain, Duration::from_secs(7));
    assert_eq!(userspace.table.as_deref(), Some("/t".as_ref()));
    assert!(given.node.loopback_endpoints);
    let cluster = with_flags(&["--proxy-mode=userspace", "--userspace-table=-"]);
    assert_eq!((cluster.backend.userspace.drain, cluster.backend.userspace.table), (DRAIN, None));
    let other = with_flags(&["--proxy-mode=nftables", "--manifests=/m"]);
    assert!(!cluster.node.loopback_endpoints && !other.node.loopback_endpoints);
}

#[test]
fn nothing_at_all_is_enough() {
    let settings = with_flags(&["--proxy-mode=", "--bind-address=", "--healthz-bind-address="]);
    assert_eq!(settings.backend.mode, Mode::NFTABLES);
    assert_eq!(settings.servers.healthz.unwrap().to_string(), "0.0.0.0:10256");
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(settings.node.node_name, hostname.trim().to_lowercase());
    assert_eq!(settings.node.local_pods, LocalPodsConfig::ClusterCidr(vec![]));
}

#[test]
fn objects_have_one_source() {
    let socket = ["--objects-socket=/s", "--hostname-override=a", "--kubeconfig=/k"];
    let settings = with_flags(&socket);
    assert_eq!(settings.source, SourceSettings::Socket("/s".into()));
    assert!(settings.node.eligible_without_node && settings.conntrack.is_some());
    let error = with_file(HEAD, &["--objects-socket=/s", "--manifests=/m"]).unwrap_err();
    assert!(matches!(error, ConfigError::Sources), "{error}");
    let neither = with_flags(&["--objects-socket="]).source;
    assert!(matches!(neither, SourceSettings::Cluster(_)), "{neither:?}");
}

#[test]
fn flags_count_more_than_the_file() {
    let text = format!("{HEAD}mode: nftables\nnftables: {{masqueradeAll: false}}\n");
    let flags = ["--masquerade-all", "--proxy-mode=", "--manifests=/some/where"];
    let loaded = with_file(&text, &flags).unwrap();
    let settings = loaded.settings;
    assert_eq!(settings.backend.mode, Mode::NFTABLES);
    assert!(settings.node.masquerade_all, "in the section of the file's mode");
    assert_eq!(settings.source, SourceSettings::Manifests("/some/where".into()));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn each_mode_has_its_section() {
    let body = "iptables: {masqueradeBit: 1, masqueradeAll: true, syncPeriod: 5s}\n\
                nftables: {masqueradeBit: 2, syncPeriod: 6s, minSyncPeriod: 2s}\n";
    let settings =
        |mode: &str| with_file(&format!("{HEAD}{body}mode: {mode:?}\n"), &[]).unwrap().settings;
    let nftables = settings("nftables");
    assert_eq!((nftables.backend.masquerade_bit, nftables.node.masquerade_all), (2, false));
    assert_eq!(nftables.periods.sync, Duration::from_secs(6));
    assert_eq!(nftables.periods.min_sync, Duration::from_secs(2));
    // The choice is ours, but the fields are those of the mode that kube-proxy would have chosen.
    let ours = settings("");
    assert_eq!((ours.backend.masquerade_bit, ours.node.masquerade_all), (1, true));
    assert_eq!(ours.periods.sync, Duration::from_secs(5));
    assert!(ours.node.serves_localhost());
    assert_eq!(nftables.node.node_port_addresses, [NodePortAddressConfig::Primary]);
    assert!(nftables.node.health_checks_everywhere);
    let iptables = settings("iptables");
    assert_eq!(iptables.backend.mode, Mode::IPTABLES);
    assert_eq!(iptables.node.node_port_addresses, [], "everywhere");
    let minimum = settings("ipvs").periods.min_sync;
    assert_eq!(minimum, Duration::ZERO);
}

#[test]
fn ipvs_mode_has_settings_and_a_period_of_its_own() {
    let body = "ipvs: {scheduler: mh, strictARP: true, syncPeriod: 7s, minSyncPeriod: 2s,\n\
                excludeCIDRs: [010.9.1.1/16, 'fd00::/8'],\n\
                tcpTimeout: 1h, tcpFinTimeout: 2m, udpTimeout: 3s}\n";
    let loaded = |mode: &str| with_file(&format!("{HEAD}{body}mode: {mode}\n"), &[]).unwrap();
    let ipvs = loaded("ipvs");
    let expected = IpvsSettings {
        scheduler: "mh".into(),
        strict_arp: true,
        exclude_cidrs: ["10.9.0.0/16", "fd00::/8"].map(|net| net.parse().unwrap()).into(),
        tcp_timeout: Duration::from_secs(3600),
        tcp_fin_timeout: Duration::from_secs(120),
        udp_timeout: Duration::from_secs(3),
        ..IpvsSettings::default()
    };
    assert_eq!(ipvs.settings.backend.ipvs, expected);
    let runner = ipvs.settings.periods.runner_config();
    assert_eq!(runner.full_period, Duration::from_secs(7), "as in kube-proxy's ipvs mode");
    assert_eq!(runner.longest_retry, Duration::from_secs(7));

    // In place of ipvs, iptables keeps its hour, and needs nothing of this.
    let instead = ipvs.with_mode(Mode::IPTABLES).unwrap();
    assert_eq!(instead.backend.ipvs, IpvsSettings::default());
    assert_eq!(instead.periods.runner_config().full_period, Duration::from_secs(3600));
    // Clean-up knows the settings in any mode, though nothing checks them.
    let nftables = loaded("nftables");
    assert_eq!(nftables.settings.backend.ipvs, IpvsSettings::default());
    assert_eq!(nftables.with_mode(Mode::IPVS).unwrap().backend.ipvs, expected);
}

#[test]
fn localhost_serves_node_ports_where_asked_for() {
    let serves = |arguments: &[&str]| {
        let mode = ["--proxy-mode=nftables"];
        let nftables = with_flags(&[&mode[..], arguments].concat()).node.serves_localhost();
        let mode = ["--proxy-mode=iptables"];
        (nftables, with_flags(&[&mode[..], arguments].concat()).node.serves_localhost())
    };
    assert_eq!(serves(&[]), (false, true), "each mode has its own default");
    assert_eq!(serves(&["--nodeport-addresses=primary"]), (false, false));
    for addresses in ["localhost", "primary,localhost", "10.0.0.0/8,127.0.0.0/8", "all"] {
        let addresses = format!("--nodeport-addresses={addresses}");
        assert_eq!(serves(&[&addresses]), (true, true), "{addresses}");
        let off = "--iptables-localhost-nodeports=false";
        assert_eq!(serves(&[&addresses, off]), (false, false), "{addresses}");
        let gate = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false";
        assert_eq!(serves(&[&addresses, gate]), (false, true), "{addresses}");
    }
    let all = with_flags(&["--nodeport-addresses=all"]).node.node_port_addresses;
    assert_eq!(format!("{all:?}"), "[Cidr(0.0.0.0/0), Cidr(::/0)]");
    // No one's kernel is changed unasked.
    let arguments = ["--manifests=/x", "--hostname-override=a"];
    assert!(!with_flags(&arguments).node.serves_localhost());
    let ipvs = with_flags(&["--proxy-mode=ipvs", "--nodeport-addresses=localhost"]);
    assert!(!ipvs.node.localhost_node_ports, "IPVS cannot");
    let userspace = with_flags(&["--proxy-mode=userspace", "--nodeport-addresses=localhost"]);
    assert!(userspace.node.localhost_node_ports, "with any way of getting traffic");
}

/// Fields of a file, and the error that they get, one case a line.
const ERRORS: &str = r#"mode: winkernel -> Mode.ProxyMode: Invalid value: "winkernel": must be iptables, ipvs, nftables, userspace or blank (blank means the first of nftables, iptables and userspace that this node can run)
mode: ipvs; featureGates: {KubeProxyIPVS: false} -> Mode.ProxyMode: Invalid value: "ipvs": the feature gate KubeProxyIPVS is false; must be iptables, nftables, userspace or blank (blank means the first of nftables, iptables and userspace that this node can run)
mode: winuserspace -> Mode.ProxyMode: Invalid value: "winuserspace": is the old name of userspace on Windows, and this is not Windows; must be iptables, ipvs, nftables, userspace or blank (blank means the first of nftables, iptables and userspace that this node can run)
iptables: {masqueradeBit: 32} -> KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]
mode: nftables; nftables: {masqueradeBit: -1} -> KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: -1: must be within the range [0, 31]
mode: nftables; nftables: {syncPeriod: -1s, minSyncPeriod: -2s} -> SyncPeriod: Invalid value: "-1s": must be greater than 0
mode: nftables; nftables: {syncPeriod: 1s, minSyncPeriod: 1m} -> SyncPeriod: Invalid value: "1m0s": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod
mode: ipvs; ipvs: {tcpTimeout: -1s} -> KubeProxyIPVSConfiguration.TCPTimeout: Invalid value: "-1s": must be greater than or equal to 0
mode: ipvs; ipvs: {excludeCIDRs: [10.0.0.0]} -> KubeProxyIPVSConfiguration.ExcludeCidrs[0]: Invalid value: "10.0.0.0": must be a valid CIDR
oomScoreAdj: 1001 -> KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]
configSyncPeriod: -1s -> ConfigSyncPeriod: Invalid value: "-1s": must be greater than 0
clientConnection: {burst: -1} -> ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0
bindAddress: eth0 -> BindAddress: Invalid value: "eth0": not a valid textual representation of an IP address
healthzBindAddress: "[fd00::1]" -> HealthzBindAddress: Invalid value: "[fd00::1]": must be IP:port
healthzBindAddress: :10256 -> HealthzBindAddress: Invalid value: ":10256": must be a valid IP
metricsBindAddress: 1.2.3.4:0 -> MetricsBindAddress: Invalid value: "1.2.3.4:0": must be a valid port
clusterCIDR: "10.0.0.0/8, fd00::/48" -> DetectLocalConfiguration.ClusterCIDRs[1]: Invalid value: " fd00::/48": must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)
clusterCIDR: 10.0.0.0/8,11.0.0.0/8 -> DetectLocalConfiguration.ClusterCIDRs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]
clusterCIDR: x,y,z -> DetectLocalConfiguration.ClusterCIDRs: Invalid value: ["x","y","z"]: must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]
nodePortAddresses: [primary, loopback] -> NodePortAddresses[1]: Invalid value: "loopback": must be a valid CIDR
nodePortAddresses: [10.0.0.0/8, x] -> NodePortAddresses[1]: Invalid value: "x": must be a valid CIDR
detectLocalMode: x -> DetectLocalMode: Unsupported value: "x": supported values: "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""
detectLocalMode: BridgeInterface -> DetectLocalConfiguration.InterfaceName: Invalid value: "": must not be empty
detectLocalMode: BridgeInterface; detectLocal: {bridgeInterface: a b} -> DetectLocalConfiguration.InterfaceName: Invalid value: "a b": no interface can have this name: must have at most 15 bytes, and no white space
detectLocalMode: InterfaceNamePrefix; detectLocal: {interfaceNamePrefix: "veth 1"} -> DetectLocalConfiguration.InterfacePrefix: Invalid value: "veth 1": no interface can have this name
detectLocalMode: InterfaceNamePrefix; detectLocal: {interfaceNamePrefix: "1234567890123456"} -> DetectLocalConfiguration.InterfacePrefix: Invalid value: "1234567890123456": no interface can have this name
conntrack: {maxPerCore: -1} -> KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.MaxPerCore: Invalid value: -1: must be greater than or equal to 0
conntrack: {tcpCloseWaitTimeout: -1s} -> KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPCloseWaitTimeout: Invalid value: "-1s": must be greater than or equal to 0"#;

#[test]
fn each_error_has_its_path() {
    for case in ERRORS.lines() {
        let (fields, message) = case.split_once(" -> ").unwrap();
        let text = refused(&fields.replace("; ", "\n"));
        assert!(text.contains(&format!("KubeProxyConfiguration.{message}")), "{case}\n  {text}");
        assert!(text.starts_with("failed validate: "), "{text}");
    }
}

#[test]
fn errors_of_logging_come_first() {
    let alpha = "Forbidden: Feature LoggingAlphaOptions is disabled";
    for (logging, message) in [
        ("format: xml", "logging.format: Invalid value: \"xml\": Unsupported log format"),
        (
            "flushFrequency: -1s",
            "logging.flushFrequency: Invalid value: \"-1s\": Must be greater than zero",
        ),
        (
            "verbosity: 2147483648",
            "logging.verbosity: Invalid value: 2147483648: Must be <= 2147483647",
        ),
        (
            "options: {json: {infoBufferSize: 1Ki}}",
            &format!("logging.options.json.infoBufferSize: {alpha}"),
        ),
        (
            "format: json, vmodule: [{filePattern: a, verbosity: 1}]",
            "logging.vmodule: Forbidden: Only supported for text log format",
        ),
        (
            "vmodule: [{filePattern: \"a=b\", verbosity: 1}]",
            "logging.vmodule[0]: Invalid value: \"a=b\": \
             File pattern must not contain equal sign or comma",
        ),
        (
            "vmodule: [{filePattern: a, verbosity: 2147483648}]",
            "logging.vmodule[0]: Invalid value: 2147483648: Must be <= 2147483647",
        ),
    ] {
        let text = refused(&format!("oomScoreAdj: 2000\nlogging: {{{logging}}}"));
        assert_eq!(text, format!("initialize logging: {message}"), "and nothing of the score");
    }
    let split = with_file(HEAD, &["--log-text-split-stream"]).unwrap_err();
    let text = ErrorChain(&split).to_string();
    assert!(text.ends_with(&format!("logging.options.text.splitStream: {alpha}")), "{text}");
    let gates = "featureGates: {LoggingBetaOptions: false}\nlogging: {format: json}";
    assert!(refused(gates).ends_with("json is disabled, see LoggingBetaOptions feature"));
    let allowed = "featureGates: {LoggingAlphaOptions: true}\n\
                   logging: {options: {text: {splitStream: true, infoBufferSize: 1.5}}}";
    let loaded = with_file(&format!("{HEAD}{allowed}"), &[]).unwrap();
    assert!(!loaded.config.logging.options.text.split_stream, "kube-proxy ignores it");
    let warning = "logging.options.text.splitStream has no effect in a file";
    assert!(loaded.warnings.iter().any(|it| it.starts_with(warning)), "{:?}", loaded.warnings);
    let given = with_file(&format!("{HEAD}{allowed}"), &["--log-text-split-stream"]).unwrap();
    assert!(given.config.logging.options.text.split_stream);
}

#[test]
fn external_ips_can_be_switched_off() {
    let gate = |value: bool| {
        let body = format!("featureGates: {{AllowServiceExternalIPs: {value}}}\n");
        with_file(&format!("{HEAD}{body}"), &[]).unwrap().settings.node.external_ips
    };
    assert!(gate(true));
    assert!(!gate(false));
    assert!(with_flags(&[]).node.external_ips);
    assert!(!with_flags(&["--feature-gates=AllowServiceExternalIPs=false"]).node.external_ips);
    let error = refused("featureGates: {NFTablesProxyMode: false}\n");
    assert_eq!(
        error,
        "failed complete: cannot set feature gate NFTablesProxyMode to false, \
         feature is locked to true"
    );
}

#[test]
fn the_gate_of_ipvs_forbids_ipvs_alone() {
    for body in
        ["mode: ipvs\n", "mode: ipvs\nfeatureGates: {KubeProxyIPVS: true, AllBeta: false}\n"]
    {
        let loaded = with_file(&format!("{HEAD}{body}"), &[]).unwrap();
        assert_eq!(loaded.named_mode(), Some(Mode::IPVS));
    }
    let body = "mode: iptables\nfeatureGates: {KubeProxyIPVS: false}\n";
    let loaded = with_file(&format!("{HEAD}{body}"), &[]).unwrap();
    let removed =
        "setting GA feature gate KubeProxyIPVS=false; it will be removed in a future release";
    assert_eq!(loaded.warnings, [removed]);
}

#[test]
fn inactive_modes_are_not_checked() {
    let body =
        "mode: nftables\nipvs: {excludeCIDRs: [x], syncPeriod: -1s}\niptables: {syncPeriod: -1s}\n";
    with_file(&format!("{HEAD}{body}"), &[]).unwrap();
    let body = "nftables: {masqueradeBit: 99, syncPeriod: -1s}\nmode: iptables\n";
    with_file(&format!("{HEAD}{body}"), &[]).unwrap();
    let body = "clusterCIDR: nonsense\ndetectLocalMode: NodeCIDR\n";
    with_file(&format!("{HEAD}{body}"), &[]).unwrap();
}

#[test]
fn names_and_files_that_are_no_good() {
    let error = load(&flags("switchyard", &["--hostname-override=  "]), &MODES).unwrap_err();
    assert_eq!(error.to_string(), "failed complete: empty hostname-override is invalid");
    let error = load(&flags("switchyard", &["--config=/does/not/exist"]), &MODES).unwrap_err();
    assert_eq!(
        ErrorChain(&error).to_string(),
        "failed complete: cannot read the configuration file /does/not/exist: \
         No such file or directory (os error 2)"
    );
    let error = refused("mode: [nftables]\n");
    assert!(error.starts_with("failed complete: cannot use the configuration file /"), "{error}");
    assert!(error.contains(": failed to decode: mode: invalid type"), "{error}");
}
