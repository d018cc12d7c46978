//! The pages `/flagz` and `/statusz`: text for people, and objects for programs that ask for an
//! object in the `Accept` header.

use std::{collections::BTreeMap, fmt::Write};

use hyper::{
    HeaderMap, StatusCode,
    header::{ACCEPT, HeaderValue, WARNING},
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde_json::{Map, Value, json};
use switchyard_config::{
    flags::{Flag, Sets, Status, table::FLAGS},
    settings::{NftTransport, Settings, SourceSettings},
    v1alpha1::KubeProxyConfiguration,
};

use super::{Answer, JSON, PLAIN_TEXT, answer, with_header};

/// The component's name in the pages, for tools that collect the pages of all components.
const COMPONENT: &str = "kube-proxy";
const GROUP: &str = "config.k8s.io";
const YAML: HeaderValue = HeaderValue::from_static("application/yaml");
/// The release of Kubernetes whose kube-proxy this program follows.
const EMULATION_VERSION: &str = "1.37";

/// A page, as text and as an object.
pub struct Page {
    kind: &'static str,
    /// The fields of the object, without kind, version and metadata.
    fields: Map<String, Value>,
    text: String,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// An object of this version. With `as_yaml`, the content type is YAML's; the text is JSON,
    /// which is also YAML.
    Object {
        version: &'static str,
        as_yaml: bool,
    },
}

impl Form {
    /// Returns the first accepted form that is available.
    fn negotiate(headers: &HeaderMap, kind: &str) -> Option<Self> {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut ranges = accepted.flat_map(|value| value.split(',')).peekable();
        if ranges.peek().is_none() {
            return Some(Self::Text);
        }
        ranges.find_map(|range| Self::parse(range, kind))
    }

    /// Parses a media range such as `application/json;v=v1beta1;g=config.k8s.io;as=Flagz`.
    fn parse(range: &str, kind: &str) -> Option<Self> {
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
    /// Returns the page in the form that a request with these headers accepts.
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

/// Returns the page `/flagz`: the flags that are equivalent to the configuration.
pub fn flagz(flags: &BTreeMap<&'static str, String>) -> Page {
    let mut text = heading("flags");
    for (name, value) in flags {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}={value}");
    }
    Page { kind: "Flagz", fields: Map::from_iter([("flags".to_owned(), json!(flags))]), text }
}

/// Returns the page `/statusz`: the version, the start and the paths of the program.
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

/// Returns the values of all current flags that are equivalent to the configuration. Flags that
/// make the program do something else than proxying have their defaults.
pub fn flags(
    settings: &Settings,
    effective: &KubeProxyConfiguration,
) -> BTreeMap<&'static str, String> {
    let config = serde_json::to_value(effective).unwrap_or_default();
    let said = |path: &str| Some(shown(config.pointer(&format!("/{}", path.replace('.', "/")))?));
    let value = |flag: &Flag| match flag.sets {
        Sets::Field(path) => said(path),
        Sets::IpvsOnly(name) => said(&format!("ipvs.{name}")),
        // An empty address means that there is no server.
        Sets::PortOf(path) => {
            Some(said(path)?.rsplit_once(':').map_or("0", |(_, port)| port).to_owned())
        }
        // These fields are in the section of the active mode; see below.
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
    // These flags have no field in the configuration.
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
    flags.insert(
        "lb-algorithm",
        node.lb_algorithm.map_or_else(String::new, |lb_algorithm| lb_algorithm.to_string()),
    );
    flags
}

fn seconds(period: std::time::Duration) -> String {
    format!("{}s", period.as_secs_f64())
}

/// Returns a value in the text form of flags.
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
