//! The manifests the proxy follows: a copy of `examples/`, whose endpoints the script changes. Where the demo
//! has an API server, the proxy follows that, and the objects of each changed file are sent there as well.

use std::{fs, path::PathBuf, time::Instant};

use packet_rig::WorkDir;

use crate::{
    error::{DemoError, Result},
    server::ApiServer,
};

/// The files of `examples/`.
pub const EXAMPLES: [(&str, &str); 8] = [
    ("node.yaml", include_str!("../../examples/node.yaml")),
    ("service-cidr.yaml", include_str!("../../examples/service-cidr.yaml")),
    ("web.yaml", include_str!("../../examples/web.yaml")),
    ("api.yaml", include_str!("../../examples/api.yaml")),
    ("dns.yaml", include_str!("../../examples/dns.yaml")),
    ("shop.yaml", include_str!("../../examples/shop.yaml")),
    ("cart.yaml", include_str!("../../examples/cart.yaml")),
    ("idle.yaml", include_str!("../../examples/idle.yaml")),
];

/// The directory of manifests inside the working directory.
const DIRECTORY: &str = "manifests";

/// The start of an endpoint's line.
pub const ENDPOINT: &str = "- {addresses: [";

/// The start of the line with the weights of a slice, which is the last of its metadata.
const WEIGHTS: &str = "  annotations: {switchyard/weights: ";

/// A copy of `examples/`, removed when dropped, or by the next run.
pub struct Manifests {
    files: WorkDir,
    directory: PathBuf,
    originals: Vec<(&'static str, String)>,
    server: Option<ApiServer>,
}

impl Manifests {
    /// Copies the files as they are.
    pub fn new() -> Result<Self> {
        Self::rewritten(str::to_owned)
    }

    /// Copies the files, each with the changes that `rewrite` makes.
    pub fn rewritten(rewrite: impl Fn(&str) -> String) -> Result<Self> {
        let files = WorkDir::new("demo")?;
        let directory = files.directory(DIRECTORY)?;
        let originals: Vec<_> =
            EXAMPLES.iter().map(|(name, text)| (*name, rewrite(text))).collect();
        for (name, text) in &originals {
            files.replace(DIRECTORY, name, text)?;
        }
        Ok(Self { files, directory, originals, server: None })
    }

    /// Sends all objects to an API server, and those of each file that changes from now on.
    pub fn publish(&mut self, server: ApiServer) -> Result<()> {
        self.originals.iter().try_for_each(|(_, text)| server.send(text).map(drop))?;
        self.server = Some(server);
        Ok(())
    }

    /// The kubeconfig of the API server that has the objects, if there is one.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        self.server.as_ref().map(|server| server.kubeconfig().to_owned())
    }

    /// The directory the proxy follows.
    pub fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    /// The path of the table that the proxy writes, if it does.
    pub fn table(&self) -> PathBuf {
        self.files.path().join("table.json")
    }

    /// The path of the proxy's log.
    pub fn log(&self) -> PathBuf {
        self.files.path().join("proxy.log")
    }

    /// Adds an endpoint to the last slice of a file. Returns when the file was put in place.
    pub fn add(&self, file: &'static str, address: &str, node: u8) -> Result<Instant> {
        let text = self.read(file)?;
        self.put(file, &with_endpoint(&text, address, node))
    }

    /// Removes an endpoint from a file.
    pub fn remove(&self, file: &'static str, address: &str) -> Result<Instant> {
        let text = self.read(file)?;
        let left = without_endpoint(&text, address)
            .ok_or_else(|| DemoError::NoEndpoint { file, address: address.to_owned() })?;
        self.put(file, &left)
    }

    /// Gives an endpoint of the last slice of a file a weight; the others have 1.
    pub fn weigh(&self, file: &'static str, address: &str, weight: u16) -> Result<Instant> {
        let text = self.read(file)?;
        self.put(file, &with_weight(&text, address, weight))
    }

    /// Gives all endpoints of a file the same weight.
    pub fn weigh_evenly(&self, file: &'static str) -> Result<Instant> {
        let text = self.read(file)?;
        self.put(file, &without_weights(&text))
    }

    /// Removes all endpoints from a file.
    pub fn remove_all(&self, file: &'static str) -> Result<Instant> {
        let text = self.read(file)?;
        let left: String =
            text.split_inclusive('\n').filter(|line| !line.starts_with(ENDPOINT)).collect();
        self.put(file, &left)
    }

    /// Puts a file back as it was copied.
    pub fn restore(&self, file: &'static str) -> Result<Instant> {
        let original = self.originals.iter().find(|(name, _)| *name == file);
        let original = original.map_or("", |(_, text)| text);
        self.put(file, original)
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.directory.join(file);
        fs::read_to_string(&path).map_err(DemoError::io(format!("read {}", path.display())))
    }

    /// Writes the new content elsewhere and renames it into place. The time is taken before the
    /// rename, so that nothing that it sets off can be earlier.
    fn put(&self, file: &str, text: &str) -> Result<Instant> {
        let fresh = self.files.path().join("fresh");
        let path = self.directory.join(file);
        let renamed = fs::write(&fresh, text)
            .and_then(|()| {
                let now = Instant::now();
                fs::rename(&fresh, &path)?;
                Ok(now)
            })
            .map_err(DemoError::io(format!("write {}", path.display())))?;
        match &self.server {
            Some(server) => server.send(text),
            None => Ok(renamed),
        }
    }
}

fn with_endpoint(text: &str, address: &str, node: u8) -> String {
    format!(
        "{}\n{ENDPOINT}{address}], nodeName: node-{node}, conditions: {{ready: true}}}}\n",
        text.trim_end()
    )
}

fn with_weight(text: &str, address: &str, weight: u16) -> String {
    let text = without_weights(text);
    let end_of_metadata = text.rfind("addressType:").unwrap_or(text.len());
    let (metadata, rest) = text.split_at(end_of_metadata);
    format!("{metadata}{WEIGHTS}\"{address}={weight}\"}}\n{rest}")
}

fn without_weights(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with(WEIGHTS)).collect()
}

fn without_endpoint(text: &str, address: &str) -> Option<String> {
    let start = format!("{ENDPOINT}{address}]");
    let left: String =
        text.split_inclusive('\n').filter(|line| !line.starts_with(&start)).collect();
    (left != text).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_come_and_go_and_nothing_else_changes() {
        let (_, web) = EXAMPLES[2];
        let more = with_endpoint(web, "10.244.2.13", 2);
        let added = "- {addresses: [10.244.2.13], nodeName: node-2, conditions: {ready: true}}\n";
        assert_eq!(more, format!("{web}{added}"));
        assert_eq!(without_endpoint(&more, "10.244.2.13").as_deref(), Some(web));
        assert_eq!(without_endpoint(web, "10.244.1.1"), None, "a prefix of another address");
    }

    #[test]
    fn weights_come_and_go_and_nothing_else_changes() {
        let (_, web) = EXAMPLES[2];
        let weighed = with_weight(web, "10.244.1.11", 7);
        let line = "\n  annotations: {switchyard/weights: \"10.244.1.11=7\"}\naddressType: IPv4\n";
        assert!(weighed.contains(line), "{weighed}");
        assert_eq!(with_weight(&weighed, "10.244.1.11", 7), weighed, "not twice");
        assert_eq!(without_weights(&weighed), web);
    }

    #[test]
    fn files_are_changed_in_place() {
        let manifests = Manifests::new().unwrap();
        assert_eq!(fs::read_dir(manifests.directory()).unwrap().count(), EXAMPLES.len());
        let before = Instant::now();
        assert!(manifests.remove_all("dns.yaml").unwrap() >= before);
        assert!(manifests.read("dns.yaml").unwrap().ends_with("\nendpoints:\n"));
        assert!(manifests.remove("dns.yaml", "10.244.1.15").is_err());
        manifests.restore("dns.yaml").unwrap();
        assert_eq!(manifests.read("dns.yaml").unwrap(), EXAMPLES[4].1);
    }

    #[test]
    fn no_file_of_examples_is_forgotten() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            // Programs are beside the manifests.
            .filter(|name| name.ends_with(".yaml"))
            .collect();
        names.sort();
        let mut ours: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        ours.sort_unstable();
        assert_eq!(names, ours);
    }
}
