//! The writer of configuration files, for `--write-config-to`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::config::v1alpha1::KubeProxyConfiguration;

/// Why a configuration could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("cannot encode the configuration")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot write the configuration to {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

/// Writes `config`, which has all defaults, to the file.
pub fn write(config: &KubeProxyConfiguration, path: &Path) -> Result<(), WriteError> {
    fs::write(path, yaml(config)?).map_err(|error| WriteError::Write(path.to_owned(), error))
}

/// Returns `config` as YAML with sorted keys. As with kube-proxy, the periods of modes that are not
/// selected are zero, and fields without a meaning on Linux are omitted or empty.
pub fn yaml(config: &KubeProxyConfiguration) -> Result<String, WriteError> {
    let mut value = serde_json::to_value(config).map_err(|e| WriteError::Encode(Box::new(e)))?;
    if let Value::Object(fields) = &mut value {
        platform(fields);
        empty_inactive(fields, &config.mode);
    }
    omit_empty(&mut value);
    serde_saphyr::to_string(&value).map_err(|e| WriteError::Encode(Box::new(e)))
}

/// Applies the defaults that depend on the platform. An empty mode stays empty, since the mode is
/// chosen at each start.
fn platform(fields: &mut Map<String, Value>) {
    if fields["detectLocalMode"] == "" {
        fields["detectLocalMode"] = json!("ClusterCIDR");
    }
    fields["portRange"] = json!("");
}

fn empty_inactive(fields: &mut Map<String, Value>, mode: &str) {
    let active = if mode.is_empty() { "iptables" } else { mode };
    for section in ["iptables", "ipvs", "nftables"] {
        if section != active
            && let Some(Value::Object(section)) = fields.get_mut(section)
        {
            section["syncPeriod"] = json!("0s");
            section["minSyncPeriod"] = json!("0s");
        }
    }
}

/// Makes empty lists `null`, and removes the fields that Go omits if they are empty.
pub fn omit_empty(value: &mut Value) {
    for path in ["/nodePortAddresses", "/ipvs/excludeCIDRs"] {
        if let Some(list) = value.pointer_mut(path).filter(|list| **list == json!([])) {
            *list = Value::Null;
        }
    }
    for (section, field, empty) in [
        ("", "windowsRunAsService", json!(false)),
        ("", "featureGates", json!({})),
        ("/logging", "vmodule", json!([])),
        ("/logging/options/text", "splitStream", json!(false)),
        ("/logging/options/json", "splitStream", json!(false)),
    ] {
        if let Some(Value::Object(fields)) = value.pointer_mut(section)
            && fields.get(field) == Some(&empty)
        {
            fields.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::file, *};

    #[test]
    fn what_is_written_can_be_read() {
        let mut config = KubeProxyConfiguration {
            mode: "nftables".into(),
            cluster_cidr: "10.0.0.0/8".into(),
            ..Default::default()
        };
        config.client_connection.qps = 0.1;
        config.apply_defaults();
        let text = yaml(&config).unwrap();
        assert!(text.starts_with("apiVersion: "), "{text}");
        assert!(text.contains("  qps: 0.1\n"), "{text}");
        assert!(!text.contains("windowsRunAsService"), "{text}");
        let read = file::decode(&text).unwrap();
        assert_eq!(read.warnings, [""; 0], "{text}");
        let mut read = read.config;
        assert_eq!(read.node_port_addresses, [""; 0], "health checks are answered everywhere then");
        assert_eq!(read.detect_local_mode, "ClusterCIDR");
        assert_eq!(read.iptables.sync_period.to_string(), "0s");
        read.apply_defaults();
        config.detect_local_mode = "ClusterCIDR".into();
        assert_eq!(read, config);
        assert_eq!(yaml(&read).unwrap(), text);
    }

    #[test]
    fn keys_are_sorted() {
        let text = yaml(&KubeProxyConfiguration::default()).unwrap();
        let keys: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with([' ', '-']))
            .filter_map(|line| line.split(':').next())
            .collect();
        assert!(keys.is_sorted(), "{text}");
    }
}
