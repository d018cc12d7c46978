//! KubeProxyConfiguration, `kubeproxy.config.k8s.io/v1alpha1`: the fields and their defaults.
//!
//! The type has every field of the API, so that every file that kube-proxy accepts is accepted. As
//! in Go, a field that is absent, `null` or zero is unset, and [`apply_defaults`] gives the field a
//! value. A field for which zero differs from unset is an `Option`.
//!
//! [`apply_defaults`]: KubeProxyConfiguration::apply_defaults

#![allow(missing_docs, reason = "the API's own reference says what each field means")]

use std::{collections::BTreeMap, fmt::Display, net::IpAddr};

use serde::{Deserialize, Serialize};
use switchyard_core::model::parse_ip;

use crate::config::duration::GoDuration;

/// The `apiVersion` of the object.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The `kind` of the object.
pub const KIND: &str = "KubeProxyConfiguration";

/// The default port of the health server.
pub const HEALTHZ_PORT: u16 = 10256;
/// The default port of the metrics server.
pub const METRICS_PORT: u16 = 10249;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyConfiguration {
    pub api_version: String,
    pub kind: String,
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub winkernel: Winkernel,
    pub detect_local_mode: String,
    pub detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: Option<i32>,
    pub conntrack: Conntrack,
    pub config_sync_period: GoDuration,
    pub port_range: String,
    pub windows_run_as_service: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    #[serde(serialize_with = "as_written")]
    pub qps: f32,
    pub burst: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    pub format: String,
    #[serde(deserialize_with = "text_or_nanoseconds")]
    pub flush_frequency: GoDuration,
    pub verbosity: u32,
    pub vmodule: Vec<VModule>,
    pub options: LoggingOptions,
}

/// An entry of `logging.vmodule`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VModule {
    pub file_pattern: String,
    pub verbosity: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoggingOptions {
    pub text: OutputRouting,
    pub json: OutputRouting,
}

/// `logging.options.text` and `logging.options.json`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputRouting {
    pub split_stream: bool,
    pub info_buffer_size: Quantity,
}

/// A quantity such as `"0"` or `64Ki`, as text. A file may have a number instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "QuantityForm", into = "String")]
pub struct Quantity(pub String);

impl Default for Quantity {
    fn default() -> Self {
        Self("0".into())
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.0
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a quantity such as 0 or \"64Ki\"")]
enum QuantityForm {
    Number(serde_json::Number),
    Text(String),
}

impl From<QuantityForm> for Quantity {
    fn from(form: QuantityForm) -> Self {
        Self(match form {
            QuantityForm::Number(number) => number.to_string(),
            QuantityForm::Text(text) => text,
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: GoDuration,
    pub tcp_fin_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
    pub masquerade_bit: Option<i32>,
    pub masquerade_all: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

/// `winkernel`, which has no effect on Linux.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    pub max_per_core: Option<i32>,
    pub min: Option<i32>,
    pub tcp_established_timeout: Option<GoDuration>,
    pub tcp_close_wait_timeout: Option<GoDuration>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: GoDuration,
    pub udp_stream_timeout: GoDuration,
}

/// Deserializes `logging.flushFrequency`, the only field that is a duration or a number of
/// nanoseconds.
fn text_or_nanoseconds<'de, D>(deserializer: D) -> Result<GoDuration, D::Error>
where
    D: serde::Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a duration such as \"5s\", or a number of nanoseconds")]
    enum Form {
        Nanoseconds(i64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Nanoseconds(nanos) => Ok(GoDuration::from_nanos(nanos)),
        Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

/// Serializes a number by its digits, of which an `f64` has more: 0.1 as 0.1.
fn as_written<S: serde::Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(number.to_string().parse().unwrap_or_else(|_| f64::from(*number)))
}

impl KubeProxyConfiguration {
    /// Gives every unset field the default of the API. `mode`, `detectLocalMode` and
    /// `nodePortAddresses` have no default: an empty `mode` leaves the choice to the program, and
    /// the other two depend on the mode.
    pub fn apply_defaults(&mut self) {
        default_text(&mut self.api_version, API_VERSION);
        default_text(&mut self.kind, KIND);
        default_text(&mut self.bind_address, "0.0.0.0");
        self.default_listen_addresses();
        default_period(&mut self.config_sync_period, 15 * 60);
        self.oom_score_adj.get_or_insert(-999);

        let client = &mut self.client_connection;
        default_text(&mut client.content_type, "application/vnd.kubernetes.protobuf");
        if client.qps == 0.0 {
            client.qps = 5.0;
        }
        if client.burst == 0 {
            client.burst = 10;
        }
        default_text(&mut self.logging.format, "text");
        default_period(&mut self.logging.flush_frequency, 5);

        self.iptables.masquerade_bit.get_or_insert(14);
        self.iptables.localhost_node_ports.get_or_insert(true);
        default_period(&mut self.iptables.sync_period, 30);
        default_period(&mut self.iptables.min_sync_period, 1);
        // In this section, minSyncPeriod has no default.
        default_period(&mut self.ipvs.sync_period, 30);
        self.nftables.masquerade_bit.get_or_insert(14);
        default_period(&mut self.nftables.sync_period, 30);
        default_period(&mut self.nftables.min_sync_period, 1);

        let conntrack = &mut self.conntrack;
        conntrack.max_per_core.get_or_insert(32_768);
        conntrack.min.get_or_insert(131_072);
        conntrack.tcp_established_timeout.get_or_insert(GoDuration::from_secs(24 * 3600));
        conntrack.tcp_close_wait_timeout.get_or_insert(GoDuration::from_secs(3600));
    }

    /// Gives empty listen addresses the "any" address of the family of `bindAddress`, and listen
    /// addresses without a port the default port.
    fn default_listen_addresses(&mut self) {
        let (any, loopback) = match parse_ip(&self.bind_address) {
            Ok(IpAddr::V6(_)) => ("::", "::1"),
            _ => ("0.0.0.0", "127.0.0.1"),
        };
        default_text(&mut self.healthz_bind_address, any);
        default_text(&mut self.metrics_bind_address, loopback);
        self.complete_listen_addresses();
    }

    /// Gives listen addresses without a port the default port.
    pub fn complete_listen_addresses(&mut self) {
        with_port(&mut self.healthz_bind_address, HEALTHZ_PORT);
        with_port(&mut self.metrics_bind_address, METRICS_PORT);
    }
}

fn default_text(field: &mut String, default: &str) {
    if field.is_empty() {
        field.push_str(default);
    }
}

fn default_period(field: &mut GoDuration, seconds: i64) {
    if *field == GoDuration::ZERO {
        *field = GoDuration::from_secs(seconds);
    }
}

/// Appends `port` to an address without a port.
pub fn with_port(address: &mut String, port: impl Display) {
    match parse_ip(address) {
        Ok(IpAddr::V6(v6)) => *address = format!("[{v6}]:{port}"),
        Ok(IpAddr::V4(v4)) => *address = format!("{v4}:{port}"),
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(change: impl FnOnce(&mut KubeProxyConfiguration)) -> KubeProxyConfiguration {
        let mut config = KubeProxyConfiguration::default();
        change(&mut config);
        config.apply_defaults();
        config
    }

    #[test]
    fn listen_addresses_follow_the_bind_address() {
        let check = |bind: &str, healthz: &str, metrics: &str, expected: [&str; 2]| {
            let config = defaulted(|config| {
                config.bind_address = bind.into();
                config.healthz_bind_address = healthz.into();
                config.metrics_bind_address = metrics.into();
            });
            let found = [config.healthz_bind_address, config.metrics_bind_address];
            assert_eq!(found, expected, "{bind:?} {healthz:?} {metrics:?}");
        };
        check("", "", "", ["0.0.0.0:10256", "127.0.0.1:10249"]);
        check("10.0.0.1", "", "", ["0.0.0.0:10256", "127.0.0.1:10249"]);
        check("::ffff:10.0.0.1", "", "", ["0.0.0.0:10256", "127.0.0.1:10249"]);
        check("fd00::1", "", "", ["[::]:10256", "[::1]:10249"]);
        check("", "fd00::1", "1.2.3.4", ["[fd00::1]:10256", "1.2.3.4:10249"]);
        check("", "1.2.3.4:1", "[fd00::1]:2", ["1.2.3.4:1", "[fd00::1]:2"]);
        // There is no default, so that validation can reject the value.
        check("", "[fd00::1]", "nonsense", ["[fd00::1]", "nonsense"]);
    }
}
