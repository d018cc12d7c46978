//! The manifests that the proxy follows: a copy of `examples/`, whose endpoints the script changes.
//! Where there is a genuine API server, the proxy follows that, and each changed file is applied
//! there as well.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    net::Ipv4Addr,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    time::Instant,
};

use packet_rig::{NetNs, WorkDir, spawn};

use super::{Result, cast::on_loopback};

/// The files of `examples/`.
const EXAMPLES: [(&str, &str); 8] = [
    ("node.yaml", include_str!("../../../../../examples/node.yaml")),
    ("service-cidr.yaml", include_str!("../../../../../examples/service-cidr.yaml")),
    ("web.yaml", include_str!("../../../../../examples/web.yaml")),
    ("api.yaml", include_str!("../../../../../examples/api.yaml")),
    ("dns.yaml", include_str!("../../../../../examples/dns.yaml")),
    ("shop.yaml", include_str!("../../../../../examples/shop.yaml")),
    ("cart.yaml", include_str!("../../../../../examples/cart.yaml")),
    ("idle.yaml", include_str!("../../../../../examples/idle.yaml")),
];

/// The directory of manifests inside the working directory.
const DIRECTORY: &str = "manifests";
/// The start of an endpoint's line.
const ENDPOINT: &str = "- {addresses: [";
/// The start of the line with the weights of a slice, which is the last of its metadata.
const WEIGHTS: &str = "  annotations: {switchyard/weights: ";

/// A copy of `examples/`, removed when dropped, or by the next run.
pub struct Manifests {
    files: WorkDir,
    originals: Vec<(&'static str, String)>,
    server: Option<ApiServer>,
}

impl Manifests {
    /// Copies the files, each with the changes that `rewrite` makes.
    pub fn new(rewrite: impl Fn(&str) -> String) -> Result<Self> {
        let originals: Vec<_> =
            EXAMPLES.iter().map(|(name, text)| (*name, rewrite(text))).collect();
        let files = WorkDir::new("demo")?;
        for (name, text) in &originals {
            files.replace(DIRECTORY, name, text)?;
        }
        Ok(Self { files, originals, server: None })
    }

    /// Applies all objects to a genuine API server on the node, if the environment names one.
    pub fn publish(&mut self, node: &NetNs) -> Result<bool> {
        if env::var_os("KUBE_APISERVER").is_none() && env::var_os("ETCD").is_none() {
            return Ok(false);
        }
        let server = self.server.insert(ApiServer::start(node)?);
        for (name, _) in &self.originals {
            server.apply(&self.files.path().join(DIRECTORY).join(name))?;
        }
        Ok(true)
    }

    /// The kubeconfig of the API server that has the objects, if there is one.
    pub fn kubeconfig(&self) -> Option<PathBuf> {
        self.server.as_ref().map(|server| server.kubeconfig.clone())
    }

    /// The directory that the proxy follows.
    pub fn directory(&self) -> PathBuf {
        self.path(DIRECTORY)
    }

    /// A file or directory of the working directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Changes a file, and returns the time just before.
    pub fn change(&mut self, file: &str, change: impl Fn(&str) -> String) -> Result<Instant> {
        let text = change(&fs::read_to_string(self.directory().join(file))?);
        let before = Instant::now();
        let path = self.files.replace(DIRECTORY, file, &text)?;
        if let Some(server) = &mut self.server {
            server.apply(&path)?;
        }
        Ok(before)
    }

    /// Puts a file back as it was copied.
    pub fn restore(&mut self, file: &str) -> Result<Instant> {
        let original = self.originals.iter().find(|(name, _)| *name == file);
        let original = original.map(|(_, text)| text.clone()).unwrap_or_default();
        self.change(file, |_| original.clone())
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

/// A manifest with the addresses and ports of servers on this machine. There is one IPv6 loopback
/// address, so a slice has one IPv6 endpoint, or none.
pub fn at_loopback(text: &str, servers: u16, node_port: u16, mut has_v6: bool) -> String {
    let mut rewritten = String::new();
    for line in text.split_inclusive('\n') {
        let endpoint = line.strip_prefix(ENDPOINT).and_then(|rest| rest.split_once(']'));
        if let Some((address, rest)) = endpoint {
            let address = match address.parse::<Ipv4Addr>() {
                Ok(address) => on_loopback(address).to_string(),
                Err(_) if std::mem::take(&mut has_v6) => "\"::1\"".to_owned(),
                Err(_) => continue,
            };
            rewritten += &format!("{ENDPOINT}{address}]{rest}");
        } else {
            let port = format!("ort: {servers}");
            rewritten += &line.replace("ort: 8080", &port).replace("30080", &node_port.to_string());
        }
    }
    rewritten
}

/// The program `control-plane` in the node's namespace, which starts the servers, and applies the
/// files whose names it reads. The servers end with it, and it ends with the value, or with the
/// demo.
struct ApiServer {
    child: Child,
    files: ChildStdin,
    answers: BufReader<ChildStdout>,
    kubeconfig: PathBuf,
}

impl ApiServer {
    fn start(node: &NetNs) -> Result<Self> {
        let program = env::current_exe()?.with_file_name("control-plane");
        let mut command = node.command(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn::spawn(command).map_err(|error| format!("{program:?}: {error}"))?;
        let (Some(files), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the API server has no pipes".into());
        };
        let mut server =
            Self { child, files, answers: BufReader::new(answers), kubeconfig: PathBuf::new() };
        server.kubeconfig = server.answer()?.into();
        Ok(server)
    }

    fn apply(&mut self, file: &std::path::Path) -> Result<()> {
        writeln!(self.files, "{}", file.display())?;
        self.answer().map(drop)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => Err("the API server failed; its message is above".into()),
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_weights_come_and_go_and_nothing_else_changes() {
        let (_, web) = EXAMPLES[2];
        let more = with_endpoint(web, "10.244.2.13", 2);
        let added = "- {addresses: [10.244.2.13], nodeName: node-2, conditions: {ready: true}}\n";
        assert_eq!(more, format!("{web}{added}"));
        assert_eq!(without_endpoint(&more, "10.244.2.13"), web);
        assert_eq!(without_endpoint(web, "10.244.1.1"), web, "a prefix of another address");
        assert!(without_endpoint(web, "").ends_with("\nendpoints:\n"));
        let weighed = with_weight(web, "10.244.1.11", 7);
        let line = "\n  annotations: {switchyard/weights: \"10.244.1.11=7\"}\naddressType: IPv4\n";
        assert!(weighed.contains(line), "{weighed}");
        assert_eq!(without_weights(&weighed), web);
    }

    #[test]
    fn no_address_and_port_of_a_pod_is_left_at_loopback() {
        for has_v6 in [true, false] {
            for (name, text) in EXAMPLES {
                let new = at_loopback(text, 4321, 31_234, has_v6);
                let mut lines = new.lines().filter(|line| line.contains(ENDPOINT));
                assert!(lines.all(|line| line.contains("[127.77.") || line.contains("[\"::1\"]")));
                assert!(!new.contains("8080") && !new.contains("30080}"), "{new}");
                assert_eq!(new.contains("nodePort: 31234"), name == "shop.yaml");
                assert_eq!(new.contains("[\"::1\"]"), has_v6 && name == "api.yaml", "{new}");
            }
        }
    }

    #[test]
    fn no_file_of_examples_is_forgotten() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let yaml = names.filter(|name| name.to_string_lossy().ends_with(".yaml"));
        assert_eq!(yaml.count(), EXAMPLES.len());
    }
}
