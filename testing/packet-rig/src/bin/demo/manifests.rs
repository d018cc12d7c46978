//! The manifests that the proxy follows: a copy of `examples/`, whose endpoints the script changes.

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Instant,
};

use packet_rig::WorkDir;

use super::{Result, cast::on_loopback};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const DIRECTORY: &str = "manifests";
const ENDPOINT: &str = "- {addresses: [";
/// The start of the line with the weights of a slice, which is the last of its metadata.
const WEIGHTS: &str = "  annotations: {switchyard/weights: ";

/// A copy of `examples/`, removed when dropped, or by the next run.
pub struct Manifests {
    files: WorkDir,
    originals: BTreeMap<String, String>,
}

impl Manifests {
    /// Copies the files, each with the changes that `rewrite` makes.
    pub fn new(rewrite: impl Fn(&str) -> String) -> Result<Self> {
        let files = WorkDir::new("demo")?;
        let mut originals = BTreeMap::new();
        for file in fs::read_dir(EXAMPLES)? {
            let name = file?.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".yaml") {
                continue;
            }
            let text = rewrite(&fs::read_to_string(Path::new(EXAMPLES).join(&name))?);
            files.replace(DIRECTORY, &name, &text)?;
            originals.insert(name, text);
        }
        Ok(Self { files, originals })
    }

    /// A file of the directory that the proxy follows, or the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(DIRECTORY).join(name)
    }

    /// Changes a file, and returns the time just before.
    pub fn change(&self, file: &str, change: impl Fn(&str) -> String) -> Result<Instant> {
        let text = change(&fs::read_to_string(self.path(file))?);
        let before = Instant::now();
        self.files.replace(DIRECTORY, file, &text)?;
        Ok(before)
    }

    pub fn restore(&self, file: &str) -> Result<Instant> {
        self.change(file, |_| self.originals[file].clone())
    }
}

/// The text with one endpoint more, in the last slice.
pub fn with_endpoint(text: &str, address: &str, node: u8) -> String {
    let text = text.trim_end();
    format!("{text}\n{ENDPOINT}{address}], nodeName: node-{node}, conditions: {{ready: true}}}}\n")
}

/// The text without an endpoint, or without any if the address is empty.
pub fn without_endpoint(text: &str, address: &str) -> String {
    let end = if address.is_empty() { "" } else { "]" };
    without_lines(text, &format!("{ENDPOINT}{address}{end}"))
}

/// The text with a weight of an endpoint of the last slice; the others have 1.
pub fn with_weight(text: &str, address: &str, weight: u16) -> String {
    let (metadata, rest) = text.split_at(text.rfind("addressType:").unwrap_or(text.len()));
    format!("{metadata}{WEIGHTS}\"{address}={weight}\"}}\n{rest}")
}

pub fn without_weights(text: &str) -> String {
    without_lines(text, WEIGHTS)
}

fn without_lines(text: &str, start: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with(start)).collect()
}

/// A manifest with the addresses and ports of servers on this machine, without IPv6, which has one
/// loopback address.
pub fn at_loopback(text: &str, servers: u16, node_port: u16) -> String {
    let mut rewritten = String::new();
    for line in text.split_inclusive('\n') {
        let endpoint = line.strip_prefix(ENDPOINT).and_then(|rest| rest.split_once(']'));
        if let Some((address, rest)) = endpoint {
            if let Ok(address) = address.parse::<Ipv4Addr>() {
                rewritten += &format!("{ENDPOINT}{}]{rest}", on_loopback(address));
            }
        } else {
            let port = format!("ort: {servers}");
            rewritten += &line.replace("ort: 8080", &port).replace("30080", &node_port.to_string());
        }
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_weights_come_and_go_and_nothing_else_changes() {
        let web = include_str!("../../../../../examples/web.yaml");
        let more = with_endpoint(web, "10.244.2.13", 2);
        assert!(more.starts_with(web) && more.contains("- {addresses: [10.244.2.13], nodeName"));
        assert_eq!(without_endpoint(&more, "10.244.2.13"), web);
        assert_eq!(without_endpoint(web, "10.244.1.1"), web, "a prefix of another address");
        let weighed = with_weight(web, "10.244.1.11", 7);
        assert!(weighed.contains("\n  annotations: {switchyard/weights: \"10.244.1.11=7\"}\n"));
        assert_eq!(without_weights(&weighed), web);
    }

    #[test]
    fn no_address_and_port_of_a_pod_is_left_at_loopback() {
        for (name, text) in &Manifests::new(str::to_owned).unwrap().originals {
            let new = at_loopback(text, 4321, 31_234);
            let mut lines = new.lines().filter(|line| line.contains(ENDPOINT));
            assert!(lines.all(|line| line.contains("[127.77.")), "{new}");
            assert!(!new.contains("8080") && !new.contains("30080}"), "{new}");
            assert_eq!(new.contains("nodePort: 31234"), name == "shop.yaml");
        }
    }
}
