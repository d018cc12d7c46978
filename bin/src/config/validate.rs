//! The checks of a KubeProxyConfiguration, which report all errors at once, each with its path.
//!
//! Paths and most texts are the same as those of kube-proxy 1.36, since scripts and people search
//! for them. So the paths have Go's names of the fields, not the file's.

use std::fmt;

use serde_json::json;
use switchyard_core::{
    model::{parse_cidr, parse_ip},
    proxier::Mode,
};

use crate::config::{
    duration::GoDuration,
    gates,
    parse::{cluster_cidrs, listen_address},
    release::PREVIOUS_MINORS,
    v1alpha1::{Conntrack, KubeProxyConfiguration},
};

/// kube-proxy's old name of userspace mode on Windows.
pub(crate) const WINUSERSPACE: &str = "winuserspace";

/// The errors in a configuration, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(Vec<String>);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [only] => f.write_str(only),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

impl std::error::Error for Invalid {}

impl Invalid {
    /// Returns these errors, if there are any.
    pub(super) fn unless_empty(errors: Vec<String>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }
}

/// The errors that were found so far, each with its path.
#[derive(Default)]
struct Errors(Vec<String>);

impl Errors {
    fn push(&mut self, path: &str, what: String) {
        self.0.push(format!("KubeProxyConfiguration.{path}: {what}"));
    }

    fn result(self) -> Result<(), Invalid> {
        Invalid::unless_empty(self.0)
    }

    /// Adds an error about a value, which is written as in Go: texts and durations quoted, numbers
    /// unquoted.
    fn invalid(&mut self, path: &str, value: impl fmt::Display, why: &str) {
        self.push(path, format!("Invalid value: {value}: {why}"));
    }

    fn invalid_text(&mut self, path: &str, value: &str, why: &str) {
        self.invalid(path, format_args!("{value:?}"), why);
    }

    fn require_period(&mut self, good: bool, path: &str, period: GoDuration, why: &str) {
        self.require(good, path, format_args!("\"{period}\""), why);
    }

    fn require(&mut self, good: bool, path: &str, value: impl fmt::Display, why: &str) {
        if !good {
            self.invalid(path, value, why);
        }
    }
}

/// Checks a configuration with all defaults. `mode` is the mode of `modes` that the configuration
/// selects, or `None` if the configuration names no mode of `modes`.
pub fn validate(
    config: &KubeProxyConfiguration,
    mode: Option<Mode>,
    modes: &[Mode],
) -> Result<(), Invalid> {
    let mut errors = Errors::default();
    sections(config, mode, &mut errors);
    let has_ipvs = gates::is_on(&config.feature_gates, gates::IPVS);
    let is_usable = |mode: &Mode| *mode != Mode::IPVS || has_ipvs;
    if !mode.as_ref().is_some_and(is_usable) {
        let usable = modes.iter().filter(|mode| is_usable(mode));
        let mut names: Vec<&str> = usable.map(|mode| mode.as_str()).collect();
        names.sort_unstable();
        let why = format!(
            "must be {} or blank \
             (blank means the first of nftables, iptables and userspace that this node can run)",
            names.join(", ")
        );
        let why = match (mode, config.mode.as_str()) {
            (Some(_), _) => format!("the feature gate {} is false; {why}", gates::IPVS),
            (None, WINUSERSPACE) => {
                format!("is the old name of userspace on Windows, and this is not Windows; {why}")
            }
            (None, _) => why,
        };
        errors.invalid_text("Mode.ProxyMode", &config.mode, &why);
    }
    general(config, &mut errors);
    addresses(config, &mut errors);
    local_traffic(config, &mut errors);
    conntrack(&config.conntrack, &mut errors);
    errors.result()
}

fn general(config: &KubeProxyConfiguration, errors: &mut Errors) {
    if let Some(score) = config.oom_score_adj {
        let good = (-1000..=1000).contains(&score);
        errors.require(
            good,
            "KubeProxyLinuxConfiguration.OOMScoreAdj",
            score,
            "must be within the range [-1000, 1000]",
        );
    }
    let period = config.config_sync_period;
    errors.require_period(
        period > GoDuration::ZERO,
        "ConfigSyncPeriod",
        period,
        "must be greater than 0",
    );
    let burst = config.client_connection.burst;
    errors.require(burst >= 0, "ClientConnection.Burst", burst, NOT_NEGATIVE);
    let version = &config.show_hidden_metrics_for_version;
    if !version.is_empty() && !PREVIOUS_MINORS.contains(&version.as_str()) {
        let why = format!(
            "--show-hidden-metrics-for-version must be omitted or have one of the values \
             {PREVIOUS_MINORS:?}. Only the previous minor version is allowed"
        );
        errors.invalid_text("ShowHiddenMetricsForVersion", version, &why);
    }
}

/// The error of a number or a duration that is negative.
pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// Checks the sections `iptables`, `ipvs` and `nftables`. Of most fields, only the active mode's
/// are checked.
fn sections(config: &KubeProxyConfiguration, mode: Option<Mode>, errors: &mut Errors) {
    masquerade_bit("KubeProxyIPTablesConfiguration", config.iptables.masquerade_bit, errors);
    let (sync, min_sync) = match mode {
        Some(Mode::NFTABLES) if config.mode == Mode::NFTABLES.as_str() => {
            masquerade_bit(
                "KubeProxyNFTablesConfiguration",
                config.nftables.masquerade_bit,
                errors,
            );
            (config.nftables.sync_period, config.nftables.min_sync_period)
        }
        Some(Mode::IPVS) => {
            ipvs(config, errors);
            (config.ipvs.sync_period, config.ipvs.min_sync_period)
        }
        _ => (config.iptables.sync_period, config.iptables.min_sync_period),
    };
    // kube-proxy reports the periods without their section.
    errors.require_period(sync > GoDuration::ZERO, "SyncPeriod", sync, "must be greater than 0");
    errors.require_period(!min_sync.is_negative(), "MinSyncPeriod", min_sync, NOT_NEGATIVE);
    let why = "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod";
    errors.require_period(min_sync <= sync, "SyncPeriod", min_sync, why);
}

fn masquerade_bit(section: &str, bit: Option<i32>, errors: &mut Errors) {
    if let Some(bit) = bit {
        let good = (0..=31).contains(&bit);
        let path = format!("{section}.MasqueradeBit");
        errors.require(good, &path, bit, "must be within the range [0, 31]");
    }
}

fn ipvs(config: &KubeProxyConfiguration, errors: &mut Errors) {
    for (field, timeout) in [
        ("TCPTimeout", config.ipvs.tcp_timeout),
        ("TCPFinTimeout", config.ipvs.tcp_fin_timeout),
        ("UDPTimeout", config.ipvs.udp_timeout),
    ] {
        let path = format!("KubeProxyIPVSConfiguration.{field}");
        errors.require_period(!timeout.is_negative(), &path, timeout, NOT_NEGATIVE);
    }
    for (index, text) in config.ipvs.exclude_cidrs.iter().enumerate() {
        if parse_cidr(text).is_err() {
            let path = format!("KubeProxyIPVSConfiguration.ExcludeCidrs[{index}]");
            errors.invalid_text(&path, text, "must be a valid CIDR");
        }
    }
}

fn addresses(config: &KubeProxyConfiguration, errors: &mut Errors) {
    if parse_ip(&config.bind_address).is_err() {
        let why = "not a valid textual representation of an IP address";
        errors.invalid_text("BindAddress", &config.bind_address, why);
    }
    for (path, text) in [
        ("HealthzBindAddress", &config.healthz_bind_address),
        ("MetricsBindAddress", &config.metrics_bind_address),
    ] {
        // A flag can make the address empty, after the defaults, to disable the server.
        if path == "HealthzBindAddress" && text.is_empty() {
            continue;
        }
        if let Err(why) = listen_address(text) {
            errors.invalid_text(path, text, why);
        }
    }
    for (index, text) in config.node_port_addresses.iter().enumerate() {
        let is_word = ["primary", "localhost", "all"].contains(&text.as_str());
        if !is_word && parse_cidr(text).is_err() {
            let path = format!("NodePortAddresses[{index}]");
            errors.invalid_text(&path, text, "must be a valid CIDR");
        }
    }
}

/// Checks the fields about the detection of local traffic.
fn local_traffic(config: &KubeProxyConfiguration, errors: &mut Errors) {
    let detect = &config.detect_local;
    match config.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => {
            if let Err((index, why)) = cluster_cidrs(&config.cluster_cidr) {
                let path = "DetectLocalConfiguration.ClusterCIDRs";
                let parts: Vec<&str> = config.cluster_cidr.split(',').collect();
                match index {
                    Some(i) => errors.invalid_text(&format!("{path}[{i}]"), parts[i], why),
                    None => errors.invalid(path, json!(parts), why),
                }
            }
        }
        "NodeCIDR" => {}
        "BridgeInterface" => interface_name(
            "DetectLocalConfiguration.InterfaceName",
            &detect.bridge_interface,
            errors,
        ),
        "InterfaceNamePrefix" => interface_name(
            "DetectLocalConfiguration.InterfacePrefix",
            &detect.interface_name_prefix,
            errors,
        ),
        other => errors.push(
            "DetectLocalMode",
            format!(
                "Unsupported value: {other:?}: supported values: \"ClusterCIDR\", \
                 \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\", \"\""
            ),
        ),
    }
}

fn interface_name(path: &str, name: &str, errors: &mut Errors) {
    if name.is_empty() {
        errors.invalid_text(path, name, "must not be empty");
    } else if name.len() > 15 || name.contains(char::is_whitespace) {
        let why = "no interface can have this name: \
                   must have at most 15 bytes, and no white space";
        errors.invalid_text(path, name, why);
    }
}

fn conntrack(conntrack: &Conntrack, errors: &mut Errors) {
    for (field, number) in [("MaxPerCore", conntrack.max_per_core), ("Min", conntrack.min)] {
        if let Some(number) = number {
            let path =
                format!("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.{field}");
            errors.require(number >= 0, &path, number, NOT_NEGATIVE);
        }
    }
    for (field, timeout) in [
        ("TCPEstablishedTimeout", conntrack.tcp_established_timeout.unwrap_or_default()),
        ("TCPCloseWaitTimeout", conntrack.tcp_close_wait_timeout.unwrap_or_default()),
        ("UDPTimeout", conntrack.udp_timeout),
        ("UDPStreamTimeout", conntrack.udp_stream_timeout),
    ] {
        let path = format!("KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.{field}");
        errors.require_period(!timeout.is_negative(), &path, timeout, NOT_NEGATIVE);
    }
}
