//! `examples/` with the addresses and ports of servers on this machine.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{cast::on_loopback, manifests::ENDPOINT};

/// The port of the pods in `examples/`.
const PORT: &str = "ort: 8080}";
/// The node port in `examples/`.
const NODE_PORT: &str = "30080";

/// The ports on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// The port of every server.
    pub servers: u16,
    /// The node port.
    pub node: u16,
    /// Whether the machine has an IPv6 loopback address.
    pub has_v6: bool,
}

impl Ports {
    /// A manifest of `examples/` with these ports, and with loopback addresses as endpoints. There is one
    /// IPv6 loopback address, so a slice has one IPv6 endpoint, or none.
    pub fn rewrite(&self, text: &str) -> String {
        let mut has_v6_endpoint = !self.has_v6;
        text.split_inclusive('\n')
            .filter_map(|line| match endpoint(line) {
                None => Some(self.with_ports(line)),
                Some((address, rest)) => {
                    let address = match address.parse::<Ipv4Addr>() {
                        Ok(address) => on_loopback(address).to_string(),
                        Err(_) if has_v6_endpoint => return None,
                        Err(_) => {
                            has_v6_endpoint = true;
                            format!("\"{}\"", Ipv6Addr::LOCALHOST)
                        }
                    };
                    Some(format!("{ENDPOINT}{address}{rest}"))
                }
            })
            .collect()
    }

    fn with_ports(&self, line: &str) -> String {
        line.replace("targetPort: 8080", &format!("targetPort: {}", self.servers))
            .replace(PORT, &format!("ort: {}}}", self.servers))
            .replace(NODE_PORT, &self.node.to_string())
    }
}

/// The address in an endpoint's line, and what follows.
fn endpoint(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix(ENDPOINT)?;
    Some(line.split_at(line.find(']')?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::EXAMPLES;

    const PORTS: Ports = Ports { servers: 4321, node: 31_234, has_v6: true };

    #[test]
    fn endpoints_and_ports_change_and_nothing_else() {
        let (_, web) = EXAMPLES[2];
        let expected = web.replace("10.244.", "127.77.").replace("ort: 8080", "ort: 4321");
        assert_ne!(expected, web);
        assert_eq!(PORTS.rewrite(web), expected);
    }

    #[test]
    fn no_address_and_port_of_a_pod_is_left_in_any_example() {
        for has_v6 in [true, false] {
            let ports = Ports { has_v6, ..PORTS };
            for (name, text) in EXAMPLES {
                let new = ports.rewrite(text);
                let left = new
                    .lines()
                    .filter(|line| line.contains("addresses: [") || line.contains("ort: 8080"));
                for line in left {
                    assert!(line.contains("127.77.") || line.contains("\"::1\""), "{name}: {line}");
                }
                assert_eq!(new.contains("nodePort: 31234"), name == "shop.yaml");
                assert_eq!(new.contains("::1\"]"), has_v6 && name == "api.yaml", "{new}");
            }
        }
    }

    #[test]
    fn a_slice_has_one_ipv6_endpoint() {
        let (_, api) = EXAMPLES[3];
        let new = PORTS.rewrite(api);
        assert_eq!(new.matches("[\"::1\"]").count(), 1, "{new}");
        assert_eq!(new.lines().count(), api.lines().count() - 1);
    }
}
