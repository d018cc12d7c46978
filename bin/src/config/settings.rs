//! What the rest of the program uses: the configuration, decided and parsed.

use std::{fmt, io, net::SocketAddr, path::PathBuf, time::Duration};

use proxy_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    model::{parse_cidr, parse_ip},
};

use super::{
    ConfigError,
    duration::GoDuration,
    gates, quantity,
    v1alpha1::{self, KubeProxyConfiguration},
    validate,
};

/// The backends, by the `mode` that selects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `nftables`
    Nftables,
    /// `iptables`
    Iptables,
    /// `ipvs`
    Ipvs,
    /// `userspace`
    Userspace,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nftables, Self::Iptables, Self::Ipvs, Self::Userspace];

    /// The mode that `text` selects: nftables if it is empty, none if there is no such mode.
    pub fn selected_by(text: &str) -> Option<Self> {
        match text {
            "" | "nftables" => Some(Self::Nftables),
            "iptables" => Some(Self::Iptables),
            "ipvs" => Some(Self::Ipvs),
            "userspace" => Some(Self::Userspace),
            _ => None,
        }
    }

    /// The word that selects it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Userspace => "userspace",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where objects come from.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceSettings {
    /// A directory of manifests, followed.
    Manifests(PathBuf),
    /// An API server.
    Cluster(ClientSettings),
}

/// How to reach the API server. With neither a kubeconfig nor a master, as a pod does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientSettings {
    /// The kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL; it counts more than the kubeconfig's.
    pub master: Option<String>,
    /// What we call ourselves.
    pub user_agent: String,
    /// Requests a second; no limit if negative.
    pub qps: f32,
    /// Requests that may be made at once, before the rate counts.
    pub burst: u32,
}

/// How transactions reach nftables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NftTransport {
    /// Straight netlink; needs no program on the node.
    #[default]
    Netlink,
    /// libnftables JSON, through the `nft` program.
    Json,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// klog's text.
    #[default]
    Text,
    /// klog's JSON, one object a line.
    Json,
}

/// How much is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// The form of a line.
    pub format: LogFormat,
    /// `-v`
    pub verbosity: u32,
    /// `--vmodule`: the verbosity in files whose names match a pattern; the first match counts.
    pub vmodule: Vec<(String, u32)>,
    /// Whether only errors go to standard error, and the rest to standard output.
    pub split_stream: bool,
    /// With split streams: bytes of what is no error that may wait to be written.
    pub info_buffer_size: usize,
    /// For how long they may.
    pub flush_frequency: Duration,
}

/// The backend, and what it alone needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSettings {
    /// Which.
    pub mode: Mode,
    /// The bit of the packet mark that means "masquerade this".
    pub masquerade_bit: u8,
    /// The way to the kernel, in nftables mode.
    pub nft_transport: NftTransport,
    /// Whether node ports are served on 127.0.0.1 too, in iptables mode.
    pub localhost_node_ports: bool,
}

/// The HTTP servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Where `/healthz` and `/livez` are served, if they are.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` is served.
    pub metrics: SocketAddr,
    /// Whether an address that cannot be bound ends the program.
    pub bind_hard_fail: bool,
}

/// When to synchronize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodSettings {
    /// After this time a sync that failed is tried again.
    pub sync: Duration,
    /// At least this long between two syncs.
    pub min_sync: Duration,
}

/// Everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where objects come from.
    pub source: SourceSettings,
    /// What Services are resolved for.
    pub node: NodeConfig,
    /// What programs them.
    pub backend: BackendSettings,
    /// When.
    pub periods: PeriodSettings,
    /// The HTTP servers.
    pub servers: ServerSettings,
    /// Logging.
    pub log: LogSettings,
    /// What to set of the kernel's connection tracking.
    pub conntrack: Option<ConntrackSettings>,
    /// What to set of how the kernel kills processes when memory is short.
    pub oom_score_adj: Option<i32>,
    /// The configuration file: what to do when it changes, `reload` decides.
    pub config_file: Option<ConfigFile>,
}

/// Connection tracking: what the operator of a cluster wants. Zero leaves a value alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Whether the operator asked for any of this: what cannot be set is an error then. Defaults
    /// that cannot be set, as in a container without privileges, leave the kernel's.
    pub is_asked_for: bool,
    /// Connections for each processor.
    pub max_per_core: u64,
    /// Connections at least, if there is a maximum.
    pub min: u64,
    /// How long idle TCP connections are kept.
    pub tcp_established_timeout: Duration,
    /// How long half-closed TCP connections are kept.
    pub tcp_close_wait_timeout: Duration,
    /// Whether packets outside the window are valid; if not, the kernel's setting is left alone.
    pub tcp_be_liberal: bool,
    /// How long UDP flows without an answer are kept.
    pub udp_timeout: Duration,
    /// How long UDP flows with answers are kept.
    pub udp_stream_timeout: Duration,
}

/// A configuration file as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

/// What is not in a KubeProxyConfiguration.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// `--manifests`
    pub manifests: Option<PathBuf>,
    /// `--master`
    pub master: Option<String>,
    /// `--nft-transport`
    pub nft_transport: NftTransport,
    /// What we call ourselves before the API server.
    pub user_agent: String,
    /// `--config`
    pub config_file: Option<ConfigFile>,
    /// Whether anybody said something about `conntrack`.
    pub conntrack_was_named: bool,
}

/// `iptables` or `nftables` of the configuration, whichever applies.
struct Section {
    masquerade_bit: Option<i32>,
    masquerade_all: bool,
    periods: PeriodSettings,
}

impl Section {
    /// The section of `mode`. If the configuration leaves the choice of the mode to us, that is
    /// `iptables`, as it is for kube-proxy: whoever wrote the file set those fields.
    fn of(config: &KubeProxyConfiguration) -> Self {
        let (iptables, nftables, ipvs) = (&config.iptables, &config.nftables, &config.ipvs);
        let periods = |sync: GoDuration, min: GoDuration| PeriodSettings {
            sync: sync.to_std(),
            min_sync: min.to_std(),
        };
        match config.mode.as_str() {
            "nftables" => Self {
                masquerade_bit: nftables.masquerade_bit,
                masquerade_all: nftables.masquerade_all,
                periods: periods(nftables.sync_period, nftables.min_sync_period),
            },
            "ipvs" => Self {
                masquerade_bit: iptables.masquerade_bit,
                masquerade_all: iptables.masquerade_all,
                periods: periods(ipvs.sync_period, ipvs.min_sync_period),
            },
            _ => Self {
                masquerade_bit: iptables.masquerade_bit,
                masquerade_all: iptables.masquerade_all,
                periods: periods(iptables.sync_period, iptables.min_sync_period),
            },
        }
    }
}

impl Settings {
    /// Parses `config`, to which all defaults have been applied and which was checked.
    pub fn new(
        config: &KubeProxyConfiguration,
        beside: &Beside,
        mode: Mode,
    ) -> Result<Self, ConfigError> {
        let listen = |text: &str| {
            validate::listen_address(text).map_err(|why| ConfigError::address(text, why))
        };
        let section = Section::of(config);
        Ok(Self {
            source: source(config, beside),
            node: NodeConfig {
                masquerade_all: section.masquerade_all,
                local_pods: local_pods(config)?,
                node_port_addresses: node_port_addresses(config, mode),
                bind_address: parse_ip(&config.bind_address).ok().filter(|ip| !ip.is_unspecified()),
                eligible_without_node: beside.manifests.is_some(),
                external_ips: gates::is_on(&config.feature_gates, gates::EXTERNAL_IPS),
                ..NodeConfig::new(node_name(config)?)
            },
            backend: BackendSettings {
                mode,
                masquerade_bit: section
                    .masquerade_bit
                    .and_then(|b| b.try_into().ok())
                    .unwrap_or(14),
                nft_transport: beside.nft_transport,
                localhost_node_ports: config.iptables.localhost_node_ports.unwrap_or(true),
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
            log: log(&config.logging),
            // On somebody's own machine the kernel's settings are theirs.
            conntrack: (beside.manifests.is_none() || beside.conntrack_was_named)
                .then(|| conntrack(&config.conntrack, beside.conntrack_was_named)),
            oom_score_adj: config.oom_score_adj.filter(|_| beside.manifests.is_none()),
            config_file: beside.config_file.clone(),
        })
    }
}

/// Whatever is asked for, no more of the log than this waits to be written.
const LARGEST_BUFFER: f64 = 16_777_216.0;

/// What `logging` says.
pub fn log(logging: &v1alpha1::Logging) -> LogSettings {
    let format = if logging.format == "json" { LogFormat::Json } else { LogFormat::Text };
    let vmodule = logging.vmodule.iter().map(|entry| (entry.file_pattern.clone(), entry.verbosity));
    let options = match format {
        LogFormat::Text => &logging.options.text,
        LogFormat::Json => &logging.options.json,
    };
    LogSettings {
        format,
        verbosity: logging.verbosity,
        vmodule: vmodule.collect(),
        split_stream: options.split_stream,
        // What was let through is a quantity.
        info_buffer_size: quantity::parse(&options.info_buffer_size.0)
            .map_or(0, |size| size.clamp(0.0, LARGEST_BUFFER) as usize),
        flush_frequency: logging.flush_frequency.to_std(),
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

fn source(config: &KubeProxyConfiguration, beside: &Beside) -> SourceSettings {
    if let Some(directory) = &beside.manifests {
        return SourceSettings::Manifests(directory.clone());
    }
    let client = &config.client_connection;
    SourceSettings::Cluster(ClientSettings {
        kubeconfig: (!client.kubeconfig.is_empty()).then(|| PathBuf::from(&client.kubeconfig)),
        master: beside.master.clone(),
        user_agent: beside.user_agent.clone(),
        qps: client.qps,
        burst: client.burst.try_into().unwrap_or(0),
    })
}

/// The name of the Node: the override, else the host's, in lower case.
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
            validate::cluster_cidrs(&config.cluster_cidr)
                .map_err(|(text, why)| ConfigError::address(&text, why))?,
        ),
    })
}

/// `nodePortAddresses`: if empty, nftables mode serves node ports on the primary addresses only.
fn node_port_addresses(config: &KubeProxyConfiguration, mode: Mode) -> Vec<NodePortAddressConfig> {
    let entries = &config.node_port_addresses;
    if entries.is_empty() && mode == Mode::Nftables {
        return vec![NodePortAddressConfig::Primary];
    }
    let parse = |text: &String| match text.as_str() {
        "primary" => Some(NodePortAddressConfig::Primary),
        text => parse_cidr(text).ok().map(NodePortAddressConfig::Cidr),
    };
    entries.iter().filter_map(parse).collect()
}
