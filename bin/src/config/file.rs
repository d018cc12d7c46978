//! The reader of KubeProxyConfiguration files, which accepts what kube-proxy accepts.
//!
//! An unknown or duplicate field only causes a warning, because files of other versions have such
//! fields: unknown fields are dropped, and the last of duplicates counts. A value of the wrong type
//! is an error.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use crate::config::v1alpha1::{API_VERSION, KIND, KubeProxyConfiguration};

/// Why a configuration file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The content is not a KubeProxyConfiguration.
    #[error("cannot use the configuration file {}", path.display())]
    Decode {
        path: PathBuf,
        /// The problem with the content.
        #[source]
        source: DecodeError,
    },
}

/// Why a text is not a KubeProxyConfiguration.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The text is neither YAML nor JSON.
    #[error("failed to decode: {0}")]
    Syntax(String),
    /// `apiVersion` or `kind` is absent.
    #[error("failed to decode: Object '{0}' is missing")]
    Missing(&'static str),
    #[error("failed to decode: no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind { kind: String, api_version: String },
    /// A field has a value of the wrong type.
    #[error("failed to decode: {field}: {message}")]
    Field {
        field: String,
        /// The problem with the value.
        message: String,
    },
}

/// The sections of the file, as JSON pointers.
const SECTIONS: [&str; 11] = [
    "/clientConnection",
    "/conntrack",
    "/detectLocal",
    "/iptables",
    "/ipvs",
    "/logging",
    "/logging/options",
    "/logging/options/json",
    "/logging/options/text",
    "/nftables",
    "/winkernel",
];
/// The durations that kube-proxy does not read as `null`.
const DURATIONS: [&str; 12] = [
    "/configSyncPeriod",
    "/conntrack/udpStreamTimeout",
    "/conntrack/udpTimeout",
    "/iptables/minSyncPeriod",
    "/iptables/syncPeriod",
    "/ipvs/minSyncPeriod",
    "/ipvs/syncPeriod",
    "/ipvs/tcpFinTimeout",
    "/ipvs/tcpTimeout",
    "/ipvs/udpTimeout",
    "/nftables/minSyncPeriod",
    "/nftables/syncPeriod",
];

/// A configuration that was read, without defaults.
#[derive(Debug)]
pub struct Decoded {
    pub config: KubeProxyConfiguration,
    /// The errors of a strict reader, which are only warnings here.
    pub warnings: Vec<String>,
}

/// Reads the file, and returns the configuration and the content.
pub fn read(path: &Path) -> Result<(Decoded, String), FileError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    match decode(&text) {
        Ok(decoded) => Ok((decoded, text)),
        Err(source) => Err(FileError::Decode { path: path.to_owned(), source }),
    }
}

/// Decodes the first YAML document of `text`, or JSON.
pub fn decode(text: &str) -> Result<Decoded, DecodeError> {
    let mut warnings = Vec::new();
    let mut value = parse(text, &mut warnings)?;
    check_kind(&value)?;
    check_sections(&value)?;
    for path in DURATIONS.iter().filter(|path| value.pointer(path).is_some_and(Value::is_null)) {
        let field = path[1..].replace('/', ".");
        warnings.push(format!("{field} is null, with which kube-proxy does not start"));
    }
    // A map's values have no other default than Go's zero.
    let gates = value.pointer_mut("/featureGates").and_then(Value::as_object_mut);
    for gate in gates.into_iter().flat_map(|gates| gates.values_mut()).filter(|it| it.is_null()) {
        *gate = false.into();
    }
    as_go_reads(&mut value);

    let mut unknown = |path: serde_ignored::Path<'_>| {
        warnings.push(format!("strict decoding error: unknown field {:?}", path.to_string()));
    };
    let deserializer = serde_ignored::Deserializer::new(value, &mut unknown);
    let config = serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let field = error.path().to_string();
        DecodeError::Field { field, message: error.into_inner().to_string() }
    })?;
    Ok(Decoded { config, warnings })
}

fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Value, DecodeError> {
    if text.trim_start().starts_with('{') {
        let value = serde_json::from_str(text).map_err(|e| DecodeError::Syntax(e.to_string()))?;
        // The JSON reader takes the last of duplicates. The YAML reader finds the duplicates; its
        // other errors, such as about tabs, do not matter.
        if let Err(strict @ serde_saphyr::Error::DuplicateMappingKey { .. }) =
            parse_yaml(text, DuplicateKeyPolicy::Error)
        {
            warnings.push(duplicate(&strict));
        }
        return Ok(value);
    }
    match parse_yaml(text, DuplicateKeyPolicy::Error) {
        Err(strict @ serde_saphyr::Error::DuplicateMappingKey { .. }) => {
            warnings.push(duplicate(&strict));
            parse_yaml(text, DuplicateKeyPolicy::LastWins)
        }
        result => result,
    }
    .map_err(|error| DecodeError::Syntax(error.to_string()))
}

/// Returns the warning of a duplicate key, without the library's advice to programmers.
fn duplicate(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    format!(
        "strict decoding error: {}",
        text.replace(", set DuplicateKeyPolicy in Options if acceptable", "")
    )
}

fn parse_yaml(
    text: &str,
    duplicate_keys: DuplicateKeyPolicy,
) -> Result<Value, serde_saphyr::Error> {
    // Go reads YAML 1.1, where numbers that begin with 0 are octal.
    let options = serde_saphyr::options! {
        duplicate_keys: duplicate_keys, with_snippet: false, legacy_octal_numbers: true,
    };
    let mut bytes = text.as_bytes();
    serde_saphyr::read_with_options(&mut bytes, options).next().unwrap_or(Ok(Value::Null))
}

fn check_kind(value: &Value) -> Result<(), DecodeError> {
    let text = |key| value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let kind = text("kind").ok_or(DecodeError::Missing("Kind"))?;
    let api_version = text("apiVersion").ok_or(DecodeError::Missing("apiVersion"))?;
    if (api_version, kind) == (API_VERSION, KIND) {
        return Ok(());
    }
    Err(DecodeError::UnknownKind { kind: kind.to_owned(), api_version: api_version.to_owned() })
}

/// Rejects a list in the place of a section, whose fields would be taken in their order.
fn check_sections(value: &Value) -> Result<(), DecodeError> {
    let is_list = |path: &&str| value.pointer(path).is_some_and(Value::is_array);
    let levels = value.pointer("/logging/vmodule").and_then(Value::as_array);
    let level = levels.is_some_and(|levels| levels.iter().any(Value::is_array));
    let path = SECTIONS.iter().copied().find(is_list);
    let Some(path) = path.or(level.then_some("/logging/vmodule")) else { return Ok(()) };
    Err(DecodeError::Field {
        field: path[1..].replace('/', "."),
        message: "invalid type: sequence, expected a map".to_owned(),
    })
}

/// Changes what Go reads otherwise. Fields that are `null`, which Go leaves at zero, are dropped,
/// so that an unknown one causes no warning. A whole number is an integer, however it is written:
/// Helm writes a million as `1e+06`.
fn as_go_reads(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(as_go_reads);
        }
        Value::Array(items) => items.iter_mut().for_each(as_go_reads),
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|it| it.fract() == 0.0 && it.abs() < 1e15);
            *number = whole.map_or_else(|| number.clone(), |it| (it as i64).into());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    fn decoded(body: &str) -> Decoded {
        decode(&format!("{HEAD}{body}")).unwrap_or_else(|error| panic!("{body}: {error}"))
    }

    fn refused(body: &str) -> String {
        decode(&format!("{HEAD}{body}")).expect_err(body).to_string()
    }

    #[test]
    fn json_is_taken() {
        let json =
            format!("\n{{\"apiVersion\":{API_VERSION:?},\"kind\":{KIND:?},\"mode\":\"nftables\"}}");
        assert_eq!(decode(&json).unwrap().config.mode, "nftables");

        let twice = json.replace("\"mode\"", "\"mode\":\"ipvs\",\t\"mode\"");
        let found = decode(&twice).unwrap();
        assert_eq!(found.config.mode, "nftables", "the last one counts");
        assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
        let has = |part| found.warnings[0].contains(part);
        assert!(has("mode") && !has("DuplicateKeyPolicy"), "{:?}", found.warnings);
    }

    #[test]
    fn null_is_unset() {
        let found = decoded(
            "mode: null\niptables: {masqueradeBit: null}\nnodePortAddresses: null\n\
             featureGates: {AllowServiceExternalIPs: null}\n",
        );
        assert_eq!(found.config.mode, "");
        assert_eq!(found.config.iptables.masquerade_bit, None);
        assert!(!found.config.feature_gates["AllowServiceExternalIPs"], "as with kube-proxy");
        assert_eq!(found.warnings, [""; 0]);
        let found = decoded("iptables: {syncPeriod: null}\n");
        let warning = "iptables.syncPeriod is null, with which kube-proxy does not start";
        assert_eq!(found.warnings, [warning]);
    }

    #[test]
    fn numbers_are_gos() {
        let found =
            decoded("conntrack: {maxPerCore: 1e+06, min: 131072.0}\noomScoreAdj: -9.98e2\n");
        let config = found.config;
        assert_eq!(
            (config.conntrack.max_per_core, config.conntrack.min),
            (Some(1_000_000), Some(131_072))
        );
        assert_eq!(config.oom_score_adj, Some(-998));
        let found = decoded("iptables: {masqueradeBit: 016}\noomScoreAdj: 08\n");
        let config = found.config;
        assert_eq!((config.iptables.masquerade_bit, config.oom_score_adj), (Some(14), Some(8)));
        assert!(refused("oomScoreAdj: 1.5\n").contains("oomScoreAdj: invalid type"));
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named_and_dropped() {
        let found =
            decoded("udpIdleTimeout: 250ms\nmetadata: {name: config}\niptables: {foo: 1}\n");
        assert_eq!(
            found.warnings,
            [
                "strict decoding error: unknown field \"iptables.foo\"",
                "strict decoding error: unknown field \"metadata\"",
                "strict decoding error: unknown field \"udpIdleTimeout\"",
            ]
        );
        let found = decoded("mode: ipvs\nmode: nftables\n");
        assert_eq!(found.config.mode, "nftables", "the last one counts");
        assert_eq!(found.warnings.len(), 1);
        assert!(found.warnings[0].contains("mode"), "{:?}", found.warnings);
    }

    #[test]
    fn the_first_document_counts() {
        assert_eq!(decoded("mode: nftables\n---\nmode: [broken\n").config.mode, "nftables");
    }

    #[test]
    fn what_is_not_the_object_is_refused() {
        let error = |text: &str| decode(text).expect_err(text).to_string();
        assert_eq!(error(""), "failed to decode: Object 'Kind' is missing");
        assert_eq!(
            error("kind: KubeProxyConfiguration\n"),
            "failed to decode: Object 'apiVersion' is missing"
        );
        assert_eq!(
            error("apiVersion: v1\nkind: ConfigMap\n"),
            "failed to decode: no kind \"ConfigMap\" is registered for version \"v1\""
        );
        assert!(error("a: [1").starts_with("failed to decode: "), "{}", error("a: [1"));
    }

    #[test]
    fn wrong_types_are_refused_by_path() {
        assert_eq!(
            refused("iptables: {syncPeriod: 30}\n"),
            "failed to decode: iptables.syncPeriod: invalid type: integer `30`, expected a string"
        );
        assert_eq!(
            refused("configSyncPeriod: 1d\n"),
            "failed to decode: configSyncPeriod: time: unknown unit \"d\" in duration \"1d\""
        );
        assert!(refused("oomScoreAdj: high\n").starts_with("failed to decode: oomScoreAdj: "));
        let size = refused("logging: {options: {json: {infoBufferSize: true}}}\n");
        assert!(size.ends_with("infoBufferSize: a quantity such as 0 or \"64Ki\""), "{size}");
        let refusal = "failed to decode: detectLocal: invalid type: sequence, expected a map";
        assert_eq!(refused("detectLocal: [cbr0]\n"), refusal);
        let levels = refused("logging: {vmodule: [[a, 1]]}\n");
        assert!(levels.contains("logging.vmodule: invalid type: sequence"), "{levels}");
        assert!(refused("nodePortAddresses: primary\n").contains("nodePortAddresses"));
        // The field names are case-sensitive.
        assert_eq!(decoded("Mode: ipvs\n").config.mode, "");
    }
}
