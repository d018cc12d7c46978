//! A cluster of three nodes for `e2e/run.sh`: its objects, what kubectl does with them, and what goes
//! wrong if a test wants it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::jsonpath;

pub const NODES: usize = 3;
/// The image of the proxy before the run.
pub const ORIGINAL: &str = "registry.invalid/kube-proxy:v1.36.0";

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Pods with Switchyard's image never start.
    pub image_does_not_start: bool,
    /// The rollout of the original proxy takes seconds, and fails then.
    pub original_is_slow: bool,
    /// So many patches fail once Switchyard's image is in place.
    pub failing_patches: usize,
    /// These subcommands of client.sh fail with Switchyard.
    pub broken: BTreeSet<&'static str>,
    /// These fail with every proxy.
    pub broken_always: BTreeSet<&'static str>,
    /// With Switchyard, every behaviour that is checked is broken, each in a way of its own.
    pub everything: bool,
    /// Connections are lost while pods of Switchyard start.
    pub loses_connections: bool,
}

type Key = (String, String, String);

/// The objects by kind (in lower case, plural), namespace and name, and the state of the simulation.
#[derive(Debug)]
pub struct Cluster {
    pub objects: BTreeMap<Key, Value>,
    /// All calls, each as one line.
    pub calls: Vec<String>,
    pub faults: Faults,
    /// Whether cluster IPs work although there is no DaemonSet.
    pub hidden_proxy: bool,
    pub(super) not_ready: BTreeSet<String>,
    pub(super) clients: BTreeMap<(String, String), (String, Instant)>,
    pub(super) draws: usize,
    pub(super) lost: usize,
    /// Whether connections are made all the time.
    pub(super) is_loaded: bool,
    numbers: u16,
}

/// An answer of kubectl: what it prints, or its error.
pub type Answer = Result<String, String>;

/// Returns the spec of kubeadm's DaemonSet, with the defaults of the API server.
pub fn kubeadm_spec() -> Value {
    json!({
        "revisionHistoryLimit": 10,
        "selector": {"matchLabels": {"k8s-app": "kube-proxy"}},
        "template": {
            "metadata": {"labels": {"k8s-app": "kube-proxy"}},
            "spec": {
                "containers": [{
                    "name": "kube-proxy",
                    "image": ORIGINAL,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [
                        "/usr/local/bin/kube-proxy",
                        "--config=/var/lib/kube-proxy/config.conf",
                        "--hostname-override=$(NODE_NAME)",
                    ],
                    "env": [{"name": "TEXT", "value": "quotes ' \" & <signs> \\ |"}],
                    "securityContext": {"privileged": true},
                }],
                "hostNetwork": true,
            },
        },
        "updateStrategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
        },
    })
}

impl Cluster {
    pub fn new() -> Self {
        let mut cluster = Self::without_proxy();
        cluster.insert("daemonsets", "kube-system", "kube-proxy", json!({"spec": kubeadm_spec()}));
        cluster.reconcile();
        cluster
    }

    pub fn without_proxy() -> Self {
        let mut cluster = Self {
            objects: BTreeMap::new(),
            calls: Vec::new(),
            faults: Faults::default(),
            hidden_proxy: false,
            not_ready: BTreeSet::new(),
            clients: BTreeMap::new(),
            draws: 0,
            lost: 0,
            is_loaded: false,
            numbers: 0,
        };
        cluster.insert("namespaces", "", "kube-system", json!({}));
        for node in 1..=NODES {
            let [v4, v6] = node_addresses(node);
            let addresses = json!([
                {"type": "InternalIP", "address": v4},
                {"type": "InternalIP", "address": v6},
                {"type": "Hostname", "address": format!("node-{node}")},
            ]);
            let node = json!({"status": {"addresses": addresses}});
            cluster.insert("nodes", "", &format!("node-{}", cluster.objects.len()), node);
        }
        for (namespace, name, label, port) in
            [("default", "kubernetes", "provider", 443), ("kube-system", "kube-dns", "k8s-app", 53)]
        {
            let mut service = json!({
                "metadata": {"labels": {label: name}}, "spec": {"ports": [{"port": port}]},
            });
            cluster.default_service(&mut service);
            cluster.insert("services", namespace, name, service);
        }
        cluster
    }

    /// Whether Switchyard's image is in some proxy's DaemonSet.
    pub fn is_switchyard(&self) -> bool {
        let names = ["kube-proxy", "switchyard"].map(|name| key("daemonsets", "kube-system", name));
        names.iter().filter_map(|key| self.objects.get(key)).any(|object| {
            let image = &object["spec"]["template"]["spec"]["containers"][0]["image"];
            image.as_str().unwrap().contains("switchyard")
        })
    }

    fn insert(&mut self, kind: &str, namespace: &str, name: &str, mut object: Value) {
        self.numbers += 1;
        object["metadata"]["name"] = name.into();
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = namespace.into();
        }
        object["metadata"]["uid"] = format!("uid-{}", self.numbers).into();
        self.objects.insert(key(kind, namespace, name), object);
    }

    /// Returns the objects of a kind in a namespace.
    pub(super) fn all<'c>(
        &'c self,
        kind: &'c str,
        namespace: &'c str,
    ) -> impl Iterator<Item = &'c Value> {
        self.objects.iter().filter_map(move |((of, within, _), object)| {
            (of == kind && within == namespace).then_some(object)
        })
    }

    /// Does what a call of kubectl does. `Err` with the time to wait if the call takes so long.
    pub fn call(&mut self, arguments: &[String]) -> Result<Answer, Duration> {
        self.calls.push(arguments.join(" "));
        let command = Call::parse(arguments);
        let positional: Vec<&str> = command.positional.iter().map(String::as_str).collect();
        Ok(match positional[..] {
            ["get", kind] => self.list(kind, &command),
            ["get", kind, name] => self.get(kind, name, &command),
            ["apply"] => self.apply(&command),
            ["create", "configmap", name] => {
                let data = command.flags["from-file"].split_once('=').unwrap();
                let text = fs::read_to_string(data.1).unwrap();
                self.insert(
                    "configmaps",
                    command.namespace(),
                    name,
                    json!({"data": {data.0: text}}),
                );
                Ok(String::new())
            }
            ["patch", kind, name] => self.patch(kind, name, &command),
            ["rollout", "status", target] => return self.rollout(target, &command),
            ["scale", target] => {
                let key =
                    key("deployments", command.namespace(), target.split_once('/').unwrap().1);
                let count: usize = command.flags["replicas"].parse().unwrap();
                self.objects.get_mut(&key).unwrap()["spec"]["replicas"] = count.into();
                self.reconcile();
                Ok(String::new())
            }
            ["delete"] => {
                let text = fs::read_to_string(&command.flags["filename"]).unwrap();
                for object in super::documents(&text) {
                    let metadata = &object["metadata"];
                    let namespace = metadata["namespace"].as_str().unwrap_or_default();
                    let name = metadata["name"].as_str().unwrap();
                    self.objects.remove(&key(&plural(&object["kind"]), namespace, name));
                }
                self.reconcile();
                Ok(String::new())
            }
            ["delete", kind] => {
                assert_eq!(kind, "pods");
                let keys: Vec<Key> = self.selected(kind, &command).cloned().collect();
                keys.iter().for_each(|key| _ = self.objects.remove(key));
                self.note_restart();
                self.reconcile();
                Ok(String::new())
            }
            ["delete", "namespace", name] => {
                self.objects.retain(|(kind, namespace, of), _| {
                    namespace != name && !(kind == "namespaces" && of == name)
                });
                Ok(String::new())
            }
            ["delete", kind, name] => {
                let key = key(&format!("{kind}s"), command.namespace(), name);
                let found = self.objects.remove(&key).is_some();
                let is_fine = found || command.flags.contains_key("ignore-not-found");
                if is_fine { Ok(String::new()) } else { Err(format!("{name} not found")) }
            }
            ["exec", pod] => {
                assert_eq!(command.remote[..2], ["sh", "/e2e/client.sh"]);
                let words: Vec<&str> = command.remote[2..].iter().map(String::as_str).collect();
                return self.client(pod, &words);
            }
            _ => panic!("kubectl is not called with {arguments:?}"),
        })
    }

    fn get(&self, kind: &str, name: &str, command: &Call) -> Answer {
        let kind = format!("{kind}s");
        let namespace = if kind == "namespaces" { "" } else { command.namespace() };
        match self.objects.get(&key(&kind, namespace, name)) {
            Some(object) => Ok(command.print(object)),
            None if command.flags.contains_key("ignore-not-found") => Ok(String::new()),
            None => Err(format!("Error from server (NotFound): {kind} {name:?} not found")),
        }
    }

    fn list(&self, kind: &str, command: &Call) -> Answer {
        let items: Vec<&Value> =
            self.selected(kind, command).map(|key| &self.objects[key]).collect();
        Ok(command.print(&json!({"items": items})))
    }

    fn selected<'c>(&'c self, kind: &'c str, command: &'c Call) -> impl Iterator<Item = &'c Key> {
        let selector = command.flags.get("selector").map(String::as_str).unwrap_or_default();
        let labels: Vec<(&str, &str)> =
            selector.split(',').filter_map(|pair| pair.split_once('=')).collect();
        let namespace = if kind == "nodes" { "" } else { command.namespace() };
        self.objects.iter().filter_map(move |(key, object)| {
            let has_labels =
                labels.iter().all(|(name, value)| object["metadata"]["labels"][name] == *value);
            (key.0 == kind && key.1 == namespace && has_labels).then_some(key)
        })
    }

    fn apply(&mut self, command: &Call) -> Answer {
        if command.flags.get("validate").map(String::as_str) != Some("false") {
            return Err("error validating data: failed to download openapi".to_owned());
        }
        let text = fs::read_to_string(&command.flags["filename"]).unwrap();
        for mut object in super::documents(&text) {
            super::manifests::check_type(&object);
            let kind = plural(&object["kind"]);
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let is_global = kind == "namespaces" || kind.starts_with("cluster");
            let namespace = object["metadata"]["namespace"].as_str();
            let namespace = namespace.unwrap_or(command.namespace()).to_owned();
            let namespace = if is_global { String::new() } else { namespace };
            assert!(
                is_global || self.objects.contains_key(&key("namespaces", "", &namespace)),
                "{namespace} for {kind} {name}"
            );
            if kind == "services" {
                self.default_service(&mut object);
            }
            self.insert(&kind, &namespace, &name, object);
        }
        self.note_restart();
        self.reconcile();
        Ok(String::new())
    }

    fn default_service(&mut self, service: &mut Value) {
        self.numbers += 1;
        let number = self.numbers;
        let spec = &mut service["spec"];
        let is_single = spec["ipFamilyPolicy"] == "SingleStack";
        let both = [format!("10.96.0.{}", number % 250), format!("fd00:96::{number:x}")];
        let count = if is_single { 1 } else { 2 };
        if spec["clusterIP"] != "None" {
            spec["clusterIPs"] = json!(both[..count]);
            spec["clusterIP"] = json!(both[0]);
        }
        if ["NodePort", "LoadBalancer"].contains(&spec["type"].as_str().unwrap_or_default()) {
            for (i, port) in spec["ports"].as_array_mut().unwrap().iter_mut().enumerate() {
                port["nodePort"] = (30_000 + 2 * usize::from(number) + i).into();
            }
        }
        if spec["externalTrafficPolicy"] == "Local" {
            spec["healthCheckNodePort"] = (32_000 + number).into();
        }
    }

    /// Applies a JSON patch.
    fn patch(&mut self, kind: &str, name: &str, command: &Call) -> Answer {
        if self.is_switchyard() && self.faults.failing_patches > 0 {
            self.faults.failing_patches -= 1;
            return Err("Unable to connect to the server".to_owned());
        }
        assert_eq!(command.flags["type"], "json");
        let patch: Vec<Value> = serde_json::from_str(&command.flags["patch"]).unwrap();
        let key = key(&format!("{kind}s"), command.namespace(), name);
        let object = self.objects.get_mut(&key).ok_or("not found")?;
        let before = object.clone();
        for operation in &patch {
            let path = operation["path"].as_str().unwrap();
            let (parent, name) = path.rsplit_once('/').unwrap();
            let parent = object.pointer_mut(parent).ok_or_else(|| format!("no {parent}"))?;
            assert!(operation["op"] == "add" || parent.get(name).is_some(), "{operation}");
            parent[name] = operation["value"].clone();
        }
        let has_new_pods = before["spec"]["template"] != object["spec"]["template"];
        let is_rolled = object["spec"]["updateStrategy"]["type"] == "RollingUpdate";
        if kind == "daemonset" && has_new_pods && is_rolled {
            self.objects.retain(|(kind, _, pod), _| kind != "pods" || !pod.starts_with(name));
            self.note_restart();
            self.reconcile();
        }
        Ok(String::new())
    }

    /// Whether connections are lost by pods that start now.
    fn note_restart(&mut self) {
        if self.faults.loses_connections && self.is_switchyard() {
            self.lost += 3;
        }
    }

    fn rollout(&mut self, target: &str, command: &Call) -> Result<Answer, Duration> {
        let (kind, name) = target.split_once('/').unwrap();
        let found = self.objects.get(&key(&format!("{kind}s"), command.namespace(), name));
        let Some(object) = found else { return Ok(Err(format!("{target} not found"))) };
        let is_proxy = command.namespace() == "kube-system";
        if kind == "daemonset" && object["spec"]["updateStrategy"]["type"] == "OnDelete" {
            return Ok(Err("rollout status is only available for RollingUpdate".to_owned()));
        }
        if is_proxy && self.faults.image_does_not_start && self.is_switchyard() {
            let timeout = command.flags["timeout"].trim_end_matches('s').parse().unwrap();
            return Err(Duration::from_secs(timeout));
        }
        if is_proxy && self.faults.original_is_slow && !self.is_switchyard() {
            return Err(Duration::from_secs(2));
        }
        Ok(Ok(format!("{target} successfully rolled out\n")))
    }

    /// Makes the pods that DaemonSets and Deployments have, and removes others.
    fn reconcile(&mut self) {
        let mut wanted: BTreeMap<Key, Value> = BTreeMap::new();
        for ((kind, namespace, name), object) in &self.objects {
            let count = match kind.as_str() {
                "daemonsets" => NODES,
                "deployments" => object["spec"]["replicas"].as_u64().unwrap() as usize,
                _ => continue,
            };
            let template = &object["spec"]["template"];
            for i in 1..=count {
                let node = (i - 1) % NODES + 1;
                let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
                pod["spec"]["nodeName"] = format!("node-{node}").into();
                pod["status"] = json!({"phase": "Running"});
                if template["spec"]["hostNetwork"] == true {
                    let ips = node_addresses(node).map(|ip| json!({"ip": ip}));
                    pod["status"]["podIPs"] = json!(ips);
                }
                wanted.insert(key("pods", namespace, &format!("{name}-{i}")), pod);
            }
        }
        self.objects.retain(|key, _| key.0 != "pods" || wanted.contains_key(key));
        for ((kind, namespace, name), mut pod) in wanted {
            if !self.objects.contains_key(&key(&kind, &namespace, &name)) {
                self.numbers += 1;
                if pod["status"]["podIPs"].is_null() {
                    let v4 = Ipv4Addr::from(0x0af4_0000 + u32::from(self.numbers));
                    let v6 = format!("fd00:244::{:x}", self.numbers);
                    pod["status"]["podIPs"] = json!([{"ip": v4.to_string()}, {"ip": v6}]);
                }
                // A server listens a moment after its start, and the proxy knows it at once.
                let probe = &pod["spec"]["containers"][0]["readinessProbe"]["exec"]["command"];
                let is_server = pod["metadata"]["labels"]["app"] == "scaled";
                if self.is_loaded && is_server && *probe != asks_the_port() {
                    self.lost += 1;
                }
                self.insert(&kind, &namespace, &name, pod);
            }
        }
    }
}

/// Returns the command of a readiness probe that succeeds only if the server listens.
pub(super) fn asks_the_port() -> Value {
    json!(["sh", "/e2e/client.sh", "is-ready", "8080"])
}

pub(super) fn node_addresses(node: usize) -> [String; 2] {
    [format!("192.0.2.{node}"), format!("2001:db8::{node}")]
}

fn key(kind: &str, namespace: &str, name: &str) -> Key {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

fn plural(kind: &Value) -> String {
    format!("{}s", kind.as_str().unwrap().to_lowercase())
}

/// The arguments of a call.
struct Call {
    positional: Vec<String>,
    flags: BTreeMap<String, String>,
    /// What follows `--`.
    remote: Vec<String>,
}

impl Call {
    fn parse(arguments: &[String]) -> Self {
        let mut call = Self { positional: Vec::new(), flags: BTreeMap::new(), remote: Vec::new() };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if word == "--" {
                call.remote = words.by_ref().cloned().collect();
            } else if let Some(flag) = word.strip_prefix("--") {
                let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
                call.flags.insert(name.to_owned(), value.to_owned());
            } else if let "-o" | "-f" = word.as_str() {
                let name = if word == "-o" { "output" } else { "filename" };
                call.flags.insert(name.to_owned(), words.next().unwrap().clone());
            } else {
                call.positional.push(word.clone());
            }
        }
        call
    }

    fn namespace(&self) -> &str {
        self.flags.get("namespace").map_or("default", String::as_str)
    }

    fn print(&self, object: &Value) -> String {
        let output = &self.flags["output"];
        match output.strip_prefix("jsonpath=") {
            Some(template) => jsonpath::print(template, object),
            None => object.to_string(),
        }
    }
}
