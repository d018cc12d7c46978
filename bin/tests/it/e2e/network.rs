//! What `e2e/client.sh` finds in the pods of the simulated cluster.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, NODES, node_addresses};

const NAMESPACE: &str = "switchyard-e2e";

/// A client: its pod, node and addresses.
struct Client {
    node: String,
    addresses: Vec<String>,
    is_on_host: bool,
}

impl Cluster {
    /// Runs a subcommand of client.sh in a pod.
    pub(super) fn client(&mut self, pod: &str, words: &[&str]) -> Result<Answer, Duration> {
        let Some(object) = self.all("pods", NAMESPACE).find(|it| it["metadata"]["name"] == pod)
        else {
            return Ok(Err(format!("no pod {pod}")));
        };
        let client = Client {
            node: object["spec"]["nodeName"].as_str().unwrap().to_owned(),
            addresses: addresses(object),
            is_on_host: object["spec"]["hostNetwork"] == true,
        };
        let name = words[0];
        let is_broken = self.faults.broken_always.contains(name)
            || self.faults.broken.contains(name) && self.is_switchyard()
            || name == "udp" && self.is_wrong();
        if is_broken && name == "dns" {
            return Err(Duration::from_secs(600));
        }
        let lines: Vec<String> = match words {
            ["get", count, urls @ ..] => {
                let count: usize = count.parse().unwrap();
                let urls = urls.iter().flat_map(|url| std::iter::repeat_n(*url, count));
                urls.map(|url| self.line(&client, url)).collect()
            }
            ["status", urls @ ..] => {
                let lines = urls.iter().map(|url| self.line(&client, url));
                lines.map(|line| line.strip_prefix("ok ").unwrap_or(&line).to_owned()).collect()
            }
            ["udp", _, _] if is_broken => vec!["timeout".to_owned()],
            ["udp", address, port] => vec![self.line(&client, &url(address, port))],
            ["dns", "tcp", "A", _] if self.is_wrong() => Vec::new(),
            ["dns", "udp" | "tcp", "A", _] => {
                let service = self.all("services", "default").next().unwrap();
                vec![service["spec"]["clusterIP"].as_str().unwrap().to_owned()]
            }
            ["load-start", limit, _, ..] => {
                assert!(limit.parse::<u32>().unwrap() > 0);
                self.is_loaded = true;
                Vec::new()
            }
            ["load-stop"] => {
                self.is_loaded = false;
                vec![format!("100 {}", std::mem::take(&mut self.lost))]
            }
            ["not-ready"] => {
                self.not_ready.insert(pod.to_owned());
                Vec::new()
            }
            ["ready"] => {
                self.not_ready.remove(pod);
                Vec::new()
            }
            _ => panic!("client.sh has no {words:?}"),
        };
        Ok(Ok(lines.iter().map(|line| format!("{line}\n")).collect()))
    }

    /// Whether every behaviour is broken now.
    fn is_wrong(&self) -> bool {
        self.faults.everything && self.is_switchyard()
    }

    /// Returns what a request ends with.
    fn line(&mut self, client: &Client, url: &str) -> String {
        match self.request(client, url) {
            Ok(body) => format!("ok {body}"),
            Err(word) => word.to_owned(),
        }
    }

    fn request(&mut self, client: &Client, url: &str) -> Result<String, &'static str> {
        let (_, rest) = url.split_once("://").unwrap();
        let (authority, path) = rest.split_once('/').unwrap();
        let (host, port) = authority.rsplit_once(':').unwrap();
        let (host, port) = (host.trim_matches(['[', ']']), port.parse::<u64>().unwrap());
        let node = (1..=NODES).find(|node| node_addresses(*node).iter().any(|it| it == host));
        match (host, port, path) {
            ("127.0.0.1", 10249, "proxyMode") if client.is_on_host => {
                return Ok(if self.is_switchyard() { "nftables" } else { "iptables" }.to_owned());
            }
            ("127.0.0.1", 10256, _) => return Err("refused"),
            (_, 10256, "healthz") if node.is_some() => {
                return Ok(
                    if self.is_wrong() && node == Some(2) { "503" } else { "200" }.to_owned()
                );
            }
            ("headless", 80, _) if self.is_wrong() => return Ok("web-1".to_owned()),
            ("headless", 8080, _) => return Ok("web-1".to_owned()),
            ("headless", ..) => return Err("refused"),
            _ => {}
        }
        let kubernetes = self.all("services", "default").next().unwrap();
        if kubernetes["spec"]["clusterIP"] == host {
            if self.is_wrong() && client.is_on_host {
                return Err("timeout");
            }
            let has_proxy = self.all("daemonsets", "kube-system").next().is_some();
            return if has_proxy || self.hidden_proxy { Ok("401".into()) } else { Err("timeout") };
        }
        let (service, pods) = self.route(client, host, port, node)?;
        let pod = match self.wrong_choice(client, &service, &pods, host) {
            Some(choice) => choice?,
            None => self.choose(client, &service, &pods)?,
        };
        if path == "clientip" && self.is_wrong() {
            return Ok("192.0.2.200:999".to_owned());
        }
        if path == "clientip" {
            let is_six = host.contains(':');
            let address = client.addresses.iter().find(|it| it.contains(':') == is_six).unwrap();
            return Ok(if is_six { format!("[{address}]:999") } else { format!("{address}:999") });
        }
        Ok(pod)
    }

    /// Returns the Service that has the address, and its endpoints for the client.
    fn route(
        &self,
        client: &Client,
        host: &str,
        port: u64,
        node: Option<usize>,
    ) -> Result<(Value, Vec<Value>), &'static str> {
        let has = |list: &Value| list.as_array().is_some_and(|it| it.contains(&json!(host)));
        for service in self.all("services", NAMESPACE) {
            let spec = &service["spec"];
            let pods = self.endpoints(spec);
            let on = |node: &str| {
                pods.iter().filter(|pod| pod["spec"]["nodeName"] == node).cloned().collect()
            };
            if let Some(node) = node {
                let node = format!("node-{node}");
                if spec["healthCheckNodePort"] == port {
                    let local: Vec<Value> = on(&node);
                    let is_bad = local.is_empty() && !self.is_wrong();
                    let status = json!({"status": if is_bad { "503" } else { "200" }});
                    return Ok((status, Vec::new()));
                }
                let is_six = host.contains(':');
                let ips = spec["clusterIPs"].as_array().into_iter().flatten();
                let is_served = ips.filter_map(Value::as_str).any(|ip| ip.contains(':') == is_six)
                    || self.is_wrong();
                let ports = spec["ports"].as_array().unwrap();
                if is_served && ports.iter().any(|it| it["nodePort"] == port) {
                    let is_local = spec["externalTrafficPolicy"] == "Local"
                        && client.node != node
                        && !self.is_wrong();
                    let pods = if is_local { on(&node) } else { pods };
                    return if is_local && pods.is_empty() {
                        Err("timeout")
                    } else {
                        Ok((service.clone(), pods))
                    };
                }
            } else if has(&spec["clusterIPs"]) || has(&spec["externalIPs"]) {
                let is_old = self.is_wrong() && service["metadata"]["name"] == "moving";
                let ports = spec["ports"].as_array().unwrap();
                if !is_old && ports.iter().all(|it| it["port"] != port) {
                    return Err("refused");
                }
                let is_local = spec["internalTrafficPolicy"] == "Local" && !self.is_wrong();
                let pods = if is_local { on(&client.node) } else { pods };
                return if is_local && pods.is_empty() {
                    Err("timeout")
                } else {
                    Ok((service.clone(), pods))
                };
            }
        }
        Err("refused")
    }

    fn endpoints(&self, spec: &Value) -> Vec<Value> {
        let is_all = (spec["publishNotReadyAddresses"] == true) != self.is_wrong();
        let pods = self.all("pods", NAMESPACE).filter(|pod| {
            let name = pod["metadata"]["name"].as_str().unwrap();
            pod["metadata"]["labels"]["app"] == spec["selector"]["app"]
                && (is_all || !self.not_ready.contains(name))
        });
        pods.cloned().collect()
    }

    /// Returns what a connection ends with if every behaviour is broken and this Service has a way.
    fn wrong_choice(
        &mut self,
        client: &Client,
        service: &Value,
        pods: &[Value],
        host: &str,
    ) -> Option<Result<String, &'static str>> {
        if !self.is_wrong() {
            return None;
        }
        self.draws += 1;
        let draws = self.draws;
        let is_node_port = host.starts_with("192.0.2.") || host.starts_with("2001:db8::");
        let pod = |i: usize| pods[i % pods.len()]["metadata"]["name"].as_str().unwrap().to_owned();
        match service["metadata"]["name"].as_str()? {
            "web" if is_node_port => Some(Err("timeout")),
            "web" if client.is_on_host => Some(Err("refused")),
            "web" => Some(Ok(pod(0))),
            "nothing" | "one" => Some(Err("timeout")),
            "external" => Some(Err("refused")),
            // Two servers of as many as there are.
            "scaled" => Some(Ok(pod(draws % 2))),
            // Forgotten at once in one family, and never in the other.
            "affinity" if host.contains(':') => Some(Ok(pod(draws))),
            "affinity" => Some(Ok(pod(0))),
            _ => None,
        }
    }

    /// Chooses the endpoint of a connection, by turns, and returns its name.
    fn choose(
        &mut self,
        client: &Client,
        service: &Value,
        pods: &[Value],
    ) -> Result<String, &'static str> {
        if let Some(status) = service["status"].as_str() {
            return Ok(status.to_owned());
        }
        let timeout = &service["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
        let name = service["metadata"]["name"].as_str().unwrap();
        let key = (client.addresses[0].clone(), name.to_owned());
        if let Some(seconds) = timeout.as_u64()
            && let Some((pod, last)) = self.clients.get_mut(&key)
            && last.elapsed() < Duration::from_secs(seconds)
        {
            *last = Instant::now();
            return Ok(pod.clone());
        }
        self.draws += 1;
        let pod = pods.get(self.draws % pods.len().max(1)).ok_or("refused")?;
        let pod = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.clients.insert(key, (pod.clone(), Instant::now()));
        Ok(pod)
    }
}

fn addresses(pod: &Value) -> Vec<String> {
    let ips = pod["status"]["podIPs"].as_array().unwrap();
    ips.iter().map(|ip| ip["ip"].as_str().unwrap().to_owned()).collect()
}

fn url(address: &str, port: &str) -> String {
    if address.contains(':') {
        format!("http://[{address}]:{port}/hostname")
    } else {
        format!("http://{address}:{port}/hostname")
    }
}
