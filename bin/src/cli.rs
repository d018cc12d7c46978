//! The command line: flags, and what each means for the configuration.
//!
//! Names, defaults and the rules of precedence are kube-proxy's. With `--config`, kube-proxy
//! ignores every flag whose value the file could hold, without a word; so do we, but with a
//! warning. [`Flags::values`] is the one place that knows which flag sets which field, and whether
//! it counts beside a file.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use figment::value::Value;

use crate::config::{
    duration::GoDuration,
    settings::{Beside, NftTransport},
};

/// Implements Kubernetes Services on this node.
#[derive(Debug, Parser)]
#[command(
    name = "switchyard",
    version,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do instead of proxying.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of the main mode.
    #[command(flatten)]
    pub flags: Flags,
    /// Remove everything that Switchyard or kube-proxy programmed in the kernel, and exit
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", hide_default_value = true, value_parser = go_bool,
          action = clap::ArgAction::Set)]
    pub cleanup: bool,
}

/// Other things than proxying.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print what would be programmed on this node, without privileges and without touching it
    #[command(args_override_self = true)]
    Render(Render),
}

/// `switchyard render`
#[derive(Debug, Args)]
pub struct Render {
    /// The form of the output
    #[arg(long, value_enum, default_value_t = RenderFormat::Nft)]
    pub format: RenderFormat,
    /// The node, and where its objects are.
    #[command(flatten)]
    pub flags: Flags,
}

/// What `render` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RenderFormat {
    /// nft's own syntax
    Nft,
    /// libnftables JSON
    Json,
}

/// kube-proxy's flags, and a few of our own.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// The KubeProxyConfiguration file; flags that are given count more than what it says
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Proxy for the Services and EndpointSlices in this directory instead of a cluster's
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// The file with the API server's address and credentials
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// The API server's URL; counts more than the kubeconfig's
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// The name of the Node, if it is not the host's
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// nftables, iptables, ipvs or userspace; the best available if empty
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// The pods' network, or two of different families
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub cluster_cidr: Option<String>,
    /// Where node ports are served: networks, or the word primary
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub nodeport_addresses: Option<Vec<String>>,
    /// The node's own address, if its Node does not say it
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<String>,
    /// Where health is served
    #[arg(long, value_name = "IP[:PORT]")]
    pub healthz_bind_address: Option<String>,
    /// Where metrics are served
    #[arg(long, value_name = "IP[:PORT]")]
    pub metrics_bind_address: Option<String>,
    /// Exit if one of these addresses cannot be bound
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = go_bool, value_name = "BOOL")]
    pub bind_address_hard_fail: Option<bool>,
    /// Masquerade all traffic to cluster IPs
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = go_bool, value_name = "BOOL")]
    pub masquerade_all: Option<bool>,
    /// How local pods' traffic is told: ClusterCIDR, NodeCIDR, BridgeInterface or
    /// InterfaceNamePrefix
    #[arg(long, value_name = "HOW")]
    pub detect_local_mode: Option<String>,
    /// The bridge that pods are attached to, for BridgeInterface
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// How pods' interfaces are called, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// How long after a failure to try again, in any mode but ipvs
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub iptables_sync_period: Option<GoDuration>,
    /// How long to wait between two syncs at least, in any mode but ipvs
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub iptables_min_sync_period: Option<GoDuration>,
    /// How to reach nftables
    #[arg(long, value_enum)]
    pub nft_transport: Option<NftTransport>,
    /// How much to log: 0 to 10
    #[arg(short = 'v', long = "v", value_name = "LEVEL")]
    pub verbosity: Option<u32>,
    /// How log lines look: text or json
    #[arg(long, value_name = "FORMAT")]
    pub logging_format: Option<String>,
}

/// What a flag that was given says.
#[derive(Clone, Debug, PartialEq)]
pub struct FlagValue {
    /// The path of the field it sets.
    pub path: String,
    /// The value.
    pub value: Value,
}

impl Flags {
    /// Every flag that was given and has a field in KubeProxyConfiguration, with that field. An
    /// empty text is as good as no flag, as it is for kube-proxy. `mode` is that of the
    /// configuration file: some flags belong to the section of the mode.
    pub fn values(&self, mode: &str) -> Vec<FlagValue> {
        let mode = self.proxy_mode.as_deref().filter(|mode| !mode.is_empty()).unwrap_or(mode);
        // Without a mode the iptables section counts; see `Settings`.
        let section = if mode == "nftables" { "nftables" } else { "iptables" };
        // These two have no meaning in ipvs mode, which has flags of its own for them.
        let period = |value: Option<GoDuration>| {
            value.filter(|_| mode != "ipvs").map(|period| Value::from(period.to_string()))
        };
        let text = |text: &Option<String>| text.clone().filter(|t| !t.is_empty()).map(Value::from);
        let truth = |truth: Option<bool>| truth.map(Value::from);

        let mut given = Vec::new();
        let mut add = |section: &str, field: &str, value: Option<Value>| {
            let path = if section.is_empty() { field.into() } else { format!("{section}.{field}") };
            given.extend(value.map(|value| FlagValue { path, value }));
        };
        // One line a flag.
        #[rustfmt::skip]
        {
            add("clientConnection", "kubeconfig", text(&self.kubeconfig));
            add("", "hostnameOverride", text(&self.hostname_override));
            add("", "mode", text(&self.proxy_mode));
            add("", "clusterCIDR", text(&self.cluster_cidr));
            add("", "nodePortAddresses", self.nodeport_addresses.clone().map(Value::from));
            add("", "bindAddress", text(&self.bind_address));
            add("", "healthzBindAddress", text(&self.healthz_bind_address));
            add("", "metricsBindAddress", text(&self.metrics_bind_address));
            add("", "bindAddressHardFail", truth(self.bind_address_hard_fail));
            add(section, "masqueradeAll", truth(self.masquerade_all));
            add("", "detectLocalMode", text(&self.detect_local_mode));
            add("detectLocal", "bridgeInterface", text(&self.pod_bridge_interface));
            add("detectLocal", "interfaceNamePrefix", text(&self.pod_interface_name_prefix));
            add(section, "syncPeriod", period(self.iptables_sync_period));
            add(section, "minSyncPeriod", period(self.iptables_min_sync_period));
            add("logging", "verbosity", self.verbosity.map(Value::from));
            add("logging", "format", text(&self.logging_format));
        };
        given
    }

    /// What the flags say that a KubeProxyConfiguration has no field for.
    pub fn beside(&self) -> Beside {
        Beside {
            manifests: self.manifests.clone(),
            master: self.master.clone().filter(|master| !master.is_empty()),
            nft_transport: self.nft_transport.unwrap_or_default(),
        }
    }
}

/// Reads the arguments (the first is the program's name). An error may be help or the version.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(arguments.into_iter().map(with_hyphens))
}

/// `--proxy_mode=x` means `--proxy-mode=x`.
fn with_hyphens(argument: OsString) -> OsString {
    match argument.to_str().and_then(|text| text.strip_prefix("--")) {
        Some(flag) => {
            let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
            format!("--{}{value}", name.replace('_', "-")).into()
        }
        None => argument,
    }
}

/// A boolean as Go spells it.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("neither true nor false".into()),
    }
}
