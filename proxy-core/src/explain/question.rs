//! Questions, as they are typed.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use crate::model::{Protocol, ServiceName};

/// A question to [`explain`](super::explain).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// `NAMESPACE/NAME`, or `NAMESPACE/NAME:PORT` for one port, by its name.
    Service {
        /// The Service.
        service: ServiceName,
        /// The name of the port; `None` for all ports.
        port: Option<String>,
    },
    /// `ADDRESS:PORT`, `ADDRESS:PORT/udp` or `CLIENT -> ADDRESS:PORT`.
    Address {
        /// The client's address; `None` for any client.
        client: Option<IpAddr>,
        /// The address and port that the client connects to.
        to: SocketAddr,
        /// The protocol.
        protocol: Protocol,
    },
}

/// Why a question cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// The client is no IP address.
    #[error("`{0}` is not the IP address of a client")]
    Client(String),
    /// The text is no address with a port.
    #[error("`{0}` is not ADDRESS:PORT, ADDRESS:PORT/udp or [ADDRESS]:PORT")]
    Address(String),
    /// The text is neither an address nor the name of a Service.
    #[error(
        "`{0}` is neither NAMESPACE/NAME, NAMESPACE/NAME:PORT, ADDRESS:PORT nor CLIENT -> ADDRESS:PORT"
    )]
    Unreadable(String),
}

impl FromStr for Question {
    type Err = QuestionError;

    fn from_str(text: &str) -> Result<Self, QuestionError> {
        let text = text.trim();
        let shown = || text.chars().take(100).flat_map(char::escape_debug).collect();
        if let Some((client, to)) = text.split_once("->") {
            let client = client.trim();
            let client = client.parse().map_err(|_| QuestionError::Client(client.to_owned()))?;
            let to = to.trim();
            let (to, protocol) =
                address(to).ok_or_else(|| QuestionError::Address(to.to_owned()))?;
            return Ok(Self::Address { client: Some(client), to, protocol });
        }
        if let Some((to, protocol)) = address(text) {
            return Ok(Self::Address { client: None, to, protocol });
        }
        let (namespace, rest) = text.split_once('/').unwrap_or(("default", text));
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        let is_name = |name: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            !name.is_empty() && name.len() <= 253 && name.chars().all(is_part)
        };
        let is_address = [name, rest].iter().any(|text| text.parse::<IpAddr>().is_ok());
        if !is_name(namespace) || !is_name(name) || is_address {
            return Err(QuestionError::Unreadable(shown()));
        }
        Ok(Self::Service {
            service: ServiceName::new(namespace, name),
            port: port.map(str::to_owned),
        })
    }
}

/// Reads an address and port, and the protocol behind them, by default TCP.
fn address(text: &str) -> Option<(SocketAddr, Protocol)> {
    let (address, protocol) = text.rsplit_once('/').unwrap_or((text, "tcp"));
    let protocol =
        Protocol::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(protocol))?;
    let address: SocketAddr = address.parse().ok()?;
    (address.port() != 0).then_some((address, protocol))
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { service, port: None } => write!(f, "{service}"),
            Self::Service { service, port: Some(port) } => write!(f, "{service}:{port}"),
            Self::Address { client, to, protocol } => {
                if let Some(client) = client {
                    write!(f, "{client} -> ")?;
                }
                write!(f, "{to}/{}", protocol.as_lower())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_print() {
        for (text, printed) in [
            ("shop/cart", "shop/cart"),
            ("shop/cart:http", "shop/cart:http"),
            ("cart", "default/cart"),
            (" 10.96.0.1:80 ", "10.96.0.1:80/tcp"),
            ("10.96.0.1:53/udp", "10.96.0.1:53/udp"),
            ("[fd00::1]:80/SCTP", "[fd00::1]:80/sctp"),
            ("10.244.1.9->10.96.0.1:80", "10.244.1.9 -> 10.96.0.1:80/tcp"),
            ("fd00:1::9 -> [fd00::1]:80/udp", "fd00:1::9 -> [fd00::1]:80/udp"),
        ] {
            let question: Question = text.parse().unwrap();
            assert_eq!(question.to_string(), printed);
            assert_eq!(printed.parse(), Ok(question), "{printed}");
        }
        for text in [
            "",
            "/",
            "a/",
            "a b",
            "10.96.0.1",
            "10.96.0.1:0",
            "web -> 10.96.0.1:80",
            "10.1.1.1 -> web",
        ] {
            assert!(text.parse::<Question>().is_err(), "{text}");
        }
    }
}
