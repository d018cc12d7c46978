//! `/flagz` and `/statusz`: pages for people, and the same as objects for programs that ask for
//! one in their `Accept` header.

use std::{collections::BTreeMap, fmt::Write};

use hyper::{
    HeaderMap, StatusCode,
    header::{ACCEPT, HeaderValue, WARNING},
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};

use super::{Answer, JSON, PLAIN_TEXT, answer, with_header};
use crate::{
    config::{
        settings::{NftTransport, Settings, SourceSettings},
        v1alpha1::KubeProxyConfiguration,
    },
    flags::{Flag, Sets, Status, table::FLAGS},
};

/// Whom these pages are about, for whoever collects them from all parts of a cluster.
const COMPONENT: &str = "kube-proxy";
const GROUP: &str = "config.k8s.io";
const YAML: HeaderValue = HeaderValue::from_static("application/yaml");
/// The Kubernetes release whose kube-proxy we behave like.
const EMULATION_VERSION: &str = "1.36";

/// A page, in the forms it can have.
pub struct Page {
    kind: &'static str,
    /// What is beside kind, version and metadata in the object.
    fields: Map<String, Value>,
    text: String,
}

/// How an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// An object of this version; in YAML (of which JSON is a part) if that is true.
    Object {
        version: &'static str,
        as_yaml: bool,
    },
}

impl Form {
    /// The first of the accepted forms that we have.
    fn negotiate(headers: &HeaderMap, kind: &str) -> Option<Self> {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut ranges = accepted.flat_map(|value| value.split(',')).peekable();
        if ranges.peek().is_none() {
            return Some(Self::Text);
        }
        ranges.find_map(|range| Self::of(range, kind))
    }

    /// What a media range such as `application/json;v=v1beta1;g=config.k8s.io;as=Flagz` means.
    fn of(range: &str, kind: &str) -> Option<Self> {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next()?;
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|p| p.split_once('=')).collect();
        let parameter = |name: &str| parameters.get(name).copied();
        let as_yaml = match media_type {
            "*/*" | "text/*" | "text/plain" => return Some(Self::Text),
            "application/json" => false,
            "application/yaml" => true,
            _ => return None,
        };
        if parameter("g") != Some(GROUP) || parameter("as") != Some(kind) {
            return None;
        }
        let versions = ["v1beta1", "v1alpha1"];
        let version = versions.into_iter().find(|version| parameter("v") == Some(version))?;
        Some(Self::Object { version, as_yaml })
    }
}

impl Page {
    /// The page in the form that a request with these headers accepts.
    pub fn answer(self, headers: &HeaderMap) -> Answer {
        let Self { kind, fields, text } = self;
        match Form::negotiate(headers, kind) {
            None => answer(StatusCode::NOT_ACCEPTABLE, PLAIN_TEXT, "406 not acceptable\n"),
            Some(Form::Text) => answer(StatusCode::OK, PLAIN_TEXT, text),
            Some(Form::Object { version, as_yaml }) => {
                let mut object = json!({
                    "kind": kind,
                    "apiVersion": format!("{GROUP}/{version}"),
                    "metadata": {"name": COMPONENT},
                });
                if let Some(object) = object.as_object_mut() {
                    object.extend(fields);
                }
                let media_type = if as_yaml { YAML } else { JSON };
                let mut answer = answer(StatusCode::OK, media_type, object.to_string());
                if version == "v1alpha1" {
                    let text = format!(
                        "299 - \"{GROUP}/v1alpha1 {kind} is deprecated; use {GROUP}/v1beta1 {kind}\""
                    );
                    if let Ok(text) = text.parse() {
                        with_header(&mut answer, WARNING, text);
                    }
                }
                answer
            }
        }
    }
}

fn heading(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no \
         formatting compatibility guarantees and is for debugging purposes only.\n\n"
    )
}

/// `/flagz`: what the flags would be that say all that the configuration says.
pub fn flagz(flags: &BTreeMap<&'static str, String>) -> Page {
    let mut text = heading("flags");
    for (name, value) in flags {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}={value}");
    }
    Page { kind: "Flagz", fields: Map::from_iter([("flags".to_owned(), json!(flags))]), text }
}

/// `/statusz`: since when which program runs, and what it serves.
pub fn statusz(start: Timestamp, now: Timestamp, paths: &[&str]) -> Page {
    let up = now.duration_since(start).max(SignedDuration::ZERO).as_secs();
    let version = env!("CARGO_PKG_VERSION");
    let started = start.to_zoned(TimeZone::UTC).strftime("%a %b %e %H:%M:%S UTC %Y").to_string();
    let text = format!(
        "{}Started: {started}\nUp: {} hr {:02} min {:02} sec\nGo version: none\n\
         Binary version: {version}\nEmulation version: {EMULATION_VERSION}\nPaths: {}\n",
        heading("statusz"),
        up / 3600,
        up / 60 % 60,
        up % 60,
        paths.join(" "),
    );
    let fields = [
        (
            "startTime",
            json!(Timestamp::from_second(start.as_second()).unwrap_or(start).to_string()),
        ),
        ("uptimeSeconds", json!(up)),
        ("goVersion", json!("none")),
        ("binaryVersion", json!(version)),
        ("emulationVersion", json!(EMULATION_VERSION)),
        ("paths", json!(paths)),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    Page { kind: "Statusz", fields: Map::from_iter(fields), text }
}

/// The values that flags would have, all that there are today. Those that only change what the
/// program does instead of proxying have their defaults: it proxies.
pub fn flags(
    settings: &Settings,
    effective: &KubeProxyConfiguration,
) -> BTreeMap<&'static str, String> {
    let config = serde_json::to_value(effective).unwrap_or_default();
    let said = |path: &str| Some(shown(config.pointer(&format!("/{}", path.replace('.', "/")))?));
    let value = |flag: &Flag| match flag.sets {
        Sets::Field(path) => said(path),
        Sets::IpvsOnly(name) => said(&format!("ipvs.{name}")),
        // Without an address, nothing is served.
        Sets::PortOf(path) => {
            Some(said(path)?.rsplit_once(':').map_or("0", |(_, port)| port).to_owned())
        }
        // These belong to the section of the active mode: see below.
        Sets::Section(_) | Sets::SectionUnlessIpvs(_) | Sets::Program | Sets::Nothing => None,
    };
    let current = FLAGS.iter().filter(|flag| !matches!(flag.status, Status::Gone(_)));
    let mut flags: BTreeMap<&'static str, String> = current
        .map(|flag| (flag.name, value(flag).unwrap_or_else(|| flag.default.to_owned())))
        .collect();
    let (periods, node) = (&settings.periods, &settings.node);
    flags.insert("masquerade-all", node.masquerade_all.to_string());
    flags.insert("iptables-sync-period", seconds(periods.sync));
    flags.insert("iptables-min-sync-period", seconds(periods.min_sync));
    let patterns = settings.log.vmodule.iter().map(|(pattern, most)| format!("{pattern}={most}"));
    flags.insert("vmodule", patterns.collect::<Vec<_>>().join(","));
    // And these are not in a configuration.
    if let Some(file) = &settings.config_file {
        flags.insert("config", file.path.display().to_string());
    }
    let (manifests, master) = match &settings.source {
        SourceSettings::Manifests(directory) => (directory.display().to_string(), String::new()),
        SourceSettings::Cluster(client) => {
            (String::new(), client.master.clone().unwrap_or_default())
        }
    };
    flags.insert("manifests", manifests);
    flags.insert("master", master);
    let transport = match settings.backend.nft_transport {
        NftTransport::Netlink => "netlink",
        NftTransport::Json => "json",
    };
    flags.insert("nft-transport", transport.to_owned());
    flags
}

fn seconds(period: std::time::Duration) -> String {
    format!("{}s", period.as_secs_f64())
}

/// A value as a flag has it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(","),
        Value::Object(fields) => {
            let field = |(name, value)| format!("{name}={}", shown(value));
            fields.iter().map(field).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}
