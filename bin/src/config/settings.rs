//! The settings of a run: the configuration, with every choice made and every text parsed.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    model::{LbAlgorithm, parse_cidr, parse_ip},
    proxier::Mode,
    runner::{Pace, RunnerConfig},
};
use switchyard_kernel::route::SharedAddresses;
use switchyard_sources::kube::ContentType;

use crate::{
    config::{
        duration::GoDuration,
        error::ConfigError,
        gates, logging, parse,
        v1alpha1::{self, ClientConnection, KubeProxyConfiguration},
        validate::WINUSERSPACE,
    },
    klog::LogConfig,
};

/// The modes of kube-proxy, and `userspace`, which it once had.
pub const MODES: [Mode; 4] = [Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS, Mode::USERSPACE];

/// The mode of `modes` that `text` selects: nftables for an empty text, `None` for an unknown mode.
pub(crate) fn select_mode(modes: &[Mode], text: &str) -> Option<Mode> {
    match text {
        "" => Some(Mode::NFTABLES),
        WINUSERSPACE if cfg!(windows) => Some(Mode::USERSPACE),
        text => modes.iter().copied().find(|mode| mode.as_str() == text),
    }
}

/// The source of objects.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceSettings {
    /// A directory of manifests, which is followed.
    Manifests(PathBuf),
    /// A client of this socket.
    Socket(PathBuf),
    /// An API server.
    Cluster(ClientSettings),
}

/// The connection to the API server. With neither a kubeconfig nor a master, the connection is the
/// one of a pod: by the environment and the service account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientSettings {
    pub kubeconfig: Option<PathBuf>,
    /// The URL of the API server, which overrides the kubeconfig's.
    pub master: Option<String>,
    /// The user agent of requests.
    pub user_agent: String,
    /// The form in which the server is asked for objects.
    pub content_type: ContentType,
    /// The rate of requests, per second. No limit if negative.
    pub qps: f32,
    /// The number of requests that may exceed the rate in a burst.
    pub burst: u32,
    /// The label's value of the Services to watch.
    pub service_proxy_name: Option<String>,
}

/// The transport of transactions to nftables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NftTransport {
    /// Netlink, without any program on the node.
    #[default]
    Netlink,
    /// libnftables JSON, by the `nft` program.
    Json,
}

/// The mode, and the settings that only the backend of a mode needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSettings {
    pub mode: Mode,
    /// The bit of the packet mark that requests masquerading, 0 to 31.
    pub masquerade_bit: u8,
    /// The transport of transactions, in nftables mode.
    pub nft_transport: NftTransport,
    /// The name of the proxy, if it stands beside the cluster's.
    pub beside: Option<String>,
    /// Settings that only ipvs mode needs; the defaults in any other mode.
    pub ipvs: IpvsSettings,
    /// Settings that only userspace mode needs.
    pub userspace: UserspaceSettings,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserspaceSettings {
    /// The name of the capture mode; `None` for the best that the node can run.
    pub capture: Option<String>,
    /// Whether the configuration names the mode. Loopback is a capture mode only then: it serves
    /// clients on this machine alone.
    pub is_named: bool,
    /// The time that a UDP flow lasts without a datagram; `None` for the backend's default.
    pub udp_timeout: Option<Duration>,
    /// The most connections and flows at a time; `None` for as many as the limit of descriptors
    /// allows.
    pub connections: Option<usize>,
    /// The time that connections may go on after SIGTERM.
    pub drain: Duration,
    /// The file for the table of loopback addresses; `None` for standard output.
    pub table: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// The kernel's name of the scheduler, as configured; empty for the default.
    pub scheduler: String,
    /// Whether the node answers ARP only for addresses of the interface that received the request.
    pub strict_arp: bool,
    /// The networks whose virtual servers are left alone.
    pub exclude_cidrs: Vec<IpNet>,
    /// The timeout of idle TCP connections. Zero leaves the kernel's value alone, here and below.
    pub tcp_timeout: Duration,
    /// The timeout of TCP connections after a FIN.
    pub tcp_fin_timeout: Duration,
    pub udp_timeout: Duration,
    /// The time that an endpoint that is gone keeps its connections; zero for no limit, `None` for
    /// the backend's default.
    pub drain_limit: Option<Duration>,
    /// Whether the kernel computes the rates of virtual servers; `None` leaves that alone.
    pub run_estimation: Option<bool>,
    /// The addresses that connections to the API server go to, as far as they are known.
    pub api_addresses: SharedAddresses,
}

impl IpvsSettings {
    /// Parses the section `ipvs`. Networks that cannot be parsed are left out: of a section that
    /// the mode does not select, nothing is checked.
    fn new(section: &v1alpha1::Ipvs) -> Self {
        Self {
            scheduler: section.scheduler.clone(),
            strict_arp: section.strict_arp,
            exclude_cidrs: section
                .exclude_cidrs
                .iter()
                .filter_map(|text| parse_cidr(text).ok())
                .collect(),
            tcp_timeout: section.tcp_timeout.to_std(),
            tcp_fin_timeout: section.tcp_fin_timeout.to_std(),
            udp_timeout: section.udp_timeout.to_std(),
            ..Self::default()
        }
    }
}

/// The settings of the HTTP servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// The address of `/healthz` and `/livez`, or `None` if there is no such server.
    pub healthz: Option<SocketAddr>,
    /// The address of `/metrics`.
    pub metrics: SocketAddr,
    /// Whether an address that cannot be bound ends the program.
    pub bind_hard_fail: bool,
}

/// The periods between syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodSettings {
    /// The longest wait before a failed sync is retried.
    pub sync: Duration,
    /// The longest wait between two syncs under load.
    pub min_sync: Duration,
    /// The longest wait between two resyncs with the kernel; `None` for the runner's default.
    pub comparison: Option<Duration>,
}

impl PeriodSettings {
    /// The configuration of the runner that syncs with these periods.
    pub fn runner_config(&self) -> RunnerConfig {
        let mut config = RunnerConfig::default();
        config.pace = Pace::Adaptive { longest: self.min_sync };
        config.longest_retry = self.sync;
        config.full_period = self.comparison.unwrap_or(config.full_period);
        config
    }
}

/// All settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub source: SourceSettings,
    /// The node that Services are resolved for.
    pub node: NodeConfig,
    /// The backend that programs the Services.
    pub backend: BackendSettings,
    pub periods: PeriodSettings,
    pub servers: ServerSettings,
    pub log: LogConfig,
    /// The kernel's connection tracking, or `None` to leave the kernel's settings alone.
    pub conntrack: Option<ConntrackSettings>,
    /// The period of counts of conntrack's entries by Service, or `None` for no counts.
    pub conntrack_services: Option<Duration>,
    /// The devices of the flowtable, by names that may end with a star.
    pub flowtable_devices: Vec<String>,
    /// The OOM score adjustment of this process, or `None` to leave the adjustment alone.
    pub oom_score_adj: Option<i32>,
    /// The configuration file, if there is one.
    pub config_file: Option<ConfigFile>,
}

/// The settings of connection tracking. Zero leaves the kernel's value alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Whether the operator configured any of these fields. If so, a value that cannot be set is an
    /// error. Otherwise, defaults that cannot be set, as in a container without privileges, leave
    /// the kernel's values.
    pub is_asked_for: bool,
    /// The limit of tracked connections for each processor.
    pub max_per_core: u64,
    /// The least value of the limit for all processors, if there is a limit.
    pub min: u64,
    /// The timeout of idle TCP connections.
    pub tcp_established_timeout: Duration,
    /// The timeout of half-closed TCP connections.
    pub tcp_close_wait_timeout: Duration,
    /// Whether packets outside the window are valid. False leaves the kernel's setting alone.
    pub tcp_be_liberal: bool,
    /// The timeout of UDP flows without a reply.
    pub udp_timeout: Duration,
    /// The timeout of UDP flows with replies.
    pub udp_stream_timeout: Duration,
}

/// A configuration file as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: PathBuf,
    pub text: String,
}

/// The settings that only flags have, and not KubeProxyConfiguration.
#[derive(Clone, Debug, Default)]
pub struct FlagOnlySettings {
    pub manifests: Option<PathBuf>,
    pub objects_socket: Option<PathBuf>,
    pub master: Option<String>,
    pub nft_transport: NftTransport,
    pub service_proxy_name: Option<String>,
    pub lb_algorithm: Option<LbAlgorithm>,
    pub ipvs_drain_limit: Option<Duration>,
    /// `--conntrack-services-period`, unless it is zero.
    pub conntrack_services: Option<Duration>,
    pub flowtable_devices: Vec<String>,
    pub ipvs_run_estimation: Option<bool>,
    /// `--userspace-capture` and the other flags of userspace mode.
    pub userspace: UserspaceSettings,
    /// The user agent of requests to the API server.
    pub user_agent: String,
    pub config_file: Option<ConfigFile>,
    /// Whether the file or a flag sets a field of `conntrack`.
    pub conntrack_was_named: bool,
}

/// The fields of the section of the configuration that the mode selects.
struct Section {
    masquerade_bit: Option<i32>,
    masquerade_all: bool,
    periods: PeriodSettings,
}

impl Section {
    /// Returns the section of the configuration's mode. An empty mode selects `iptables`, as with
    /// kube-proxy, since the author of the file set the fields of that section.
    fn from_config(config: &KubeProxyConfiguration) -> Self {
        let (iptables, nftables, ipvs) = (&config.iptables, &config.nftables, &config.ipvs);
        let periods = |sync: GoDuration, min: GoDuration| PeriodSettings {
            sync: sync.to_std(),
            min_sync: min.to_std(),
            comparison: None,
        };
        let of_iptables = Self {
            masquerade_bit: iptables.masquerade_bit,
            masquerade_all: iptables.masquerade_all,
            periods: periods(iptables.sync_period, iptables.min_sync_period),
        };
        match config.mode.as_str() {
            "nftables" => Self {
                masquerade_bit: nftables.masquerade_bit,
                masquerade_all: nftables.masquerade_all,
                periods: periods(nftables.sync_period, nftables.min_sync_period),
            },
            "ipvs" => {
                Self { periods: periods(ipvs.sync_period, ipvs.min_sync_period), ..of_iptables }
            }
            _ => of_iptables,
        }
    }
}

impl Settings {
    /// Parses `config`, which has all defaults and passed
    /// [`validate`](crate::config::validate::validate).
    pub fn new(
        config: &KubeProxyConfiguration,
        flag_only: &FlagOnlySettings,
        mode: Mode,
    ) -> Result<Self, ConfigError> {
        let listen =
            |text: &str| parse::listen_address(text).map_err(|why| ConfigError::address(text, why));
        let mut section = Section::from_config(config);
        // As in kube-proxy, where ipvs mode has no other syncs.
        section.periods.comparison = (mode == Mode::IPVS).then_some(section.periods.sync);
        let mut node = NodeConfig::new(node_name(config)?);
        node.masquerade_all = section.masquerade_all;
        node.local_pods = local_pods(config)?;
        node.node_port_addresses = node_port_addresses(config, flag_only, mode);
        node.health_checks_everywhere = config.node_port_addresses.is_empty();
        // Loopback addresses are the cluster's proxy's.
        node.localhost_node_ports =
            localhost_node_ports(config, mode) && flag_only.service_proxy_name.is_none();
        node.bind_address = parse_ip(&config.bind_address).ok().filter(|ip| !ip.is_unspecified());
        node.eligible_without_node =
            flag_only.manifests.is_some() || flag_only.objects_socket.is_some();
        node.external_ips = gates::is_on(&config.feature_gates, gates::EXTERNAL_IPS);
        node.lb_algorithm = flag_only.lb_algorithm;
        node.service_proxy_name.clone_from(&flag_only.service_proxy_name);
        node.loopback_endpoints = mode == Mode::USERSPACE && flag_only.manifests.is_some();
        Ok(Self {
            source: source(config, flag_only),
            node,
            backend: BackendSettings {
                mode,
                masquerade_bit: section
                    .masquerade_bit
                    .and_then(|b| b.try_into().ok())
                    .unwrap_or(14),
                nft_transport: flag_only.nft_transport,
                beside: flag_only.service_proxy_name.clone(),
                ipvs: match mode {
                    Mode::IPVS => IpvsSettings {
                        drain_limit: flag_only.ipvs_drain_limit,
                        run_estimation: flag_only.ipvs_run_estimation,
                        ..IpvsSettings::new(&config.ipvs)
                    },
                    _ => IpvsSettings::default(),
                },
                userspace: UserspaceSettings {
                    is_named: !config.mode.is_empty() && mode == Mode::USERSPACE,
                    ..flag_only.userspace.clone()
                },
            },
            periods: section.periods,
            servers: ServerSettings {
                healthz: match config.healthz_bind_address.as_str() {
                    "" => None,
                    address => Some(listen(address)?),
                },
                metrics: listen(&config.metrics_bind_address)?,
                bind_hard_fail: config.bind_address_hard_fail,
            },
            log: logging::settings(&config.logging),
            // With manifests, this may be a developer's machine, whose kernel's settings stay.
            conntrack: (flag_only.manifests.is_none() || flag_only.conntrack_was_named)
                .then(|| conntrack(&config.conntrack, flag_only.conntrack_was_named)),
            conntrack_services: flag_only.conntrack_services,
            flowtable_devices: flag_only.flowtable_devices.clone(),
            oom_score_adj: config.oom_score_adj.filter(|_| flag_only.manifests.is_none()),
            config_file: flag_only.config_file.clone(),
        })
    }
}

fn conntrack(conntrack: &v1alpha1::Conntrack, is_asked_for: bool) -> ConntrackSettings {
    let number = |value: Option<i32>| value.and_then(|n| n.try_into().ok()).unwrap_or(0);
    let period = |value: Option<GoDuration>| value.unwrap_or_default().to_std();
    ConntrackSettings {
        is_asked_for,
        max_per_core: number(conntrack.max_per_core),
        min: number(conntrack.min),
        tcp_established_timeout: period(conntrack.tcp_established_timeout),
        tcp_close_wait_timeout: period(conntrack.tcp_close_wait_timeout),
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp_timeout: conntrack.udp_timeout.to_std(),
        udp_stream_timeout: conntrack.udp_stream_timeout.to_std(),
    }
}

fn source(config: &KubeProxyConfiguration, flag_only: &FlagOnlySettings) -> SourceSettings {
    if let Some(directory) = &flag_only.manifests {
        return SourceSettings::Manifests(directory.clone());
    }
    if let Some(path) = &flag_only.objects_socket {
        return SourceSettings::Socket(path.clone());
    }
    let client = &config.client_connection;
    SourceSettings::Cluster(ClientSettings {
        kubeconfig: (!client.kubeconfig.is_empty()).then(|| PathBuf::from(&client.kubeconfig)),
        master: flag_only.master.clone(),
        user_agent: flag_only.user_agent.clone(),
        content_type: content_type(client),
        qps: client.qps,
        burst: client.burst.try_into().unwrap_or(0),
        service_proxy_name: flag_only.service_proxy_name.clone(),
    })
}

/// Returns the form in which the server is asked for objects, of the two that clients can read.
fn content_type(client: &ClientConnection) -> ContentType {
    let ClientConnection { accept_content_types, content_type, .. } = client;
    let accepted =
        if accept_content_types.is_empty() { content_type } else { accept_content_types };
    let find = |name| accepted.find(name);
    match (find("application/vnd.kubernetes.protobuf"), find("application/json")) {
        (Some(protobuf), json) if json.is_none_or(|json| protobuf < json) => ContentType::Protobuf,
        _ => ContentType::Json,
    }
}

/// Returns the name of the Node: the override, else the host's name, in lower case.
fn node_name(config: &KubeProxyConfiguration) -> Result<String, ConfigError> {
    let name = match config.hostname_override.as_str() {
        "" => hostname().map_err(ConfigError::Hostname)?,
        name => name.to_owned(),
    };
    match name.trim().to_lowercase() {
        name if name.is_empty() => Err(ConfigError::EmptyHostname),
        name => Ok(name),
    }
}

fn hostname() -> io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
}

fn local_pods(config: &KubeProxyConfiguration) -> Result<LocalPodsConfig, ConfigError> {
    Ok(match config.detect_local_mode.as_str() {
        "NodeCIDR" => LocalPodsConfig::NodeCidr,
        "BridgeInterface" => {
            LocalPodsConfig::BridgeInterface(config.detect_local.bridge_interface.clone())
        }
        "InterfaceNamePrefix" => {
            LocalPodsConfig::InterfaceNamePrefix(config.detect_local.interface_name_prefix.clone())
        }
        _ => LocalPodsConfig::ClusterCidr(
            parse::cluster_cidrs(&config.cluster_cidr)
                .map_err(|(_, why)| ConfigError::address(&config.cluster_cidr, why))?,
        ),
    })
}

/// Parses `nodePortAddresses`. If the list is empty, nftables mode serves node ports on the primary
/// addresses only. If `mode` is empty, too, the author expects kube-proxy's iptables mode, which
/// serves them on localhost as well; with manifests, this may be a developer's machine, whose
/// kernel's settings stay.
fn node_port_addresses(
    config: &KubeProxyConfiguration,
    flag_only: &FlagOnlySettings,
    mode: Mode,
) -> Vec<NodePortAddressConfig> {
    use NodePortAddressConfig::{Cidr, Localhost, Primary};

    let entries = &config.node_port_addresses;
    if entries.is_empty() && mode == Mode::NFTABLES {
        return match config.mode.is_empty() && flag_only.manifests.is_none() {
            true => vec![Primary, Localhost],
            false => vec![Primary],
        };
    }
    let parse = |text: &String| match text.as_str() {
        "primary" => vec![Primary],
        "localhost" => vec![Localhost],
        "all" => vec![Cidr(Ipv4Net::default().into()), Cidr(Ipv6Net::default().into())],
        text => parse_cidr(text).into_iter().map(Cidr).collect(),
    };
    entries.iter().flat_map(parse).collect()
}

/// Whether node ports may be served on loopback addresses, in the modes that can do so.
fn localhost_node_ports(config: &KubeProxyConfiguration, mode: Mode) -> bool {
    let is_on = config.iptables.localhost_node_ports.unwrap_or(true);
    match mode {
        Mode::IPTABLES | Mode::USERSPACE => is_on,
        Mode::NFTABLES => is_on && gates::is_on(&config.feature_gates, gates::LOCALHOST_NODE_PORTS),
        _ => false,
    }
}
