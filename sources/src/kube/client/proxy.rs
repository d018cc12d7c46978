//! The proxy variables (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`), as Go reads them for client-go.
//!
//! kubeadm copies these variables of the machine that it runs on into kube-proxy's DaemonSet. The
//! rules are those of Go's `golang.org/x/net/http/httpproxy`: upper case names go first, loopback
//! addresses and `localhost` are never reached by a proxy, and a value that cannot be understood is
//! skipped, with a warning.

use std::net::IpAddr;

use hyper::Uri;
use ipnet::IpNet;
use tracing::warn;

/// The schemes of the proxies that can be used.
const SCHEMES: [&str; 4] = ["http", "https", "socks5", "socks5h"];

/// Returns the proxy by which `server` is to be reached, or `None` for a direct connection.
/// `variable` returns the value of an environment variable.
pub(super) fn from_environment(
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<Uri> {
    let either = |upper: &str| {
        let value = variable(upper).filter(|value| !value.is_empty());
        value.or_else(|| variable(&upper.to_lowercase())).filter(|value| !value.is_empty())
    };
    let is_plain = server.scheme_str() == Some("http");
    let name = if is_plain { "HTTP_PROXY" } else { "HTTPS_PROXY" };
    let text = either(name)?;
    let port = server.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
    let exceptions = either("NO_PROXY").unwrap_or_default();
    if !is_proxied(server.host()?, port, &exceptions) {
        return None;
    }
    let proxy = parse_proxy(&text);
    if proxy.is_none() {
        // The value may hold a password.
        warn!(variable = name, "Invalid proxy; connecting directly");
    }
    proxy
}

/// Parses the address of a proxy; without a scheme it is an HTTP proxy, and without a port, SOCKS
/// has 1080.
fn parse_proxy(text: &str) -> Option<Uri> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let scheme = scheme.to_lowercase();
    let mut uri = format!("{scheme}://{rest}").parse::<Uri>().ok()?;
    if scheme.starts_with("socks") && uri.port().is_none() {
        let authority = uri.authority()?;
        uri = format!("{scheme}://{authority}:1080").parse().ok()?;
    }
    // A path, which some values end with, means nothing here.
    (uri.host().is_some() && SCHEMES.contains(&&*scheme)).then_some(uri)
}

/// Whether a connection to the host goes by the proxy, given the value of `NO_PROXY`.
fn is_proxied(host: &str, port: u16, exceptions: &str) -> bool {
    let host = unbracketed(host).to_lowercase();
    let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return false;
    }
    let mut exceptions = exceptions.split(',').map(str::trim).filter(|text| !text.is_empty());
    !exceptions.any(|exception| matches(&exception.to_lowercase(), &host, ip, port))
}

/// Whether one entry of `NO_PROXY` covers a host: `*`, a range, an address or a domain, the last
/// two with or without a port.
fn matches(exception: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if exception == "*" {
        return true;
    }
    if let Ok(range) = exception.parse::<IpNet>() {
        return ip.is_some_and(|ip| range.contains(&ip));
    }
    let (name, wanted_port) = split_port(exception);
    if wanted_port.is_some_and(|wanted| wanted != port.to_string()) {
        return false;
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return ip == Some(address.to_canonical());
    }
    match name.strip_prefix('*').unwrap_or(name) {
        "" => false,
        // Subdomains only.
        domain if domain.starts_with('.') => host.ends_with(domain),
        domain => {
            host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
        }
    }
}

/// Splits `name:port` or `[address]:port`; text of another form is a name.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, port)) if name.starts_with('[') && name.ends_with(']') => {
            (unbracketed(name), Some(port))
        }
        Some((name, port)) if !name.contains(':') => (name, Some(port)),
        _ => (unbracketed(text), None),
    }
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proxy for a server, given variables such as `HTTPS_PROXY=x`.
    fn proxy(server: &str, variables: &[&str]) -> Option<String> {
        let variable = |name: &str| {
            let pairs = variables.iter().filter_map(|pair| pair.split_once('='));
            pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        from_environment(&server.parse().unwrap(), variable).map(|uri| uri.to_string())
    }

    #[test]
    fn the_scheme_of_the_server_selects_the_variable() {
        let variables = ["HTTPS_PROXY=http://a:3128", "http_proxy=b:3128"];
        assert_eq!(proxy("https://k8s:6443", &variables).unwrap(), "http://a:3128/");
        assert_eq!(proxy("http://k8s:8080", &variables).unwrap(), "http://b:3128/");
        assert_eq!(proxy("https://k8s:6443", &["HTTPS_PROXY=", "NO_PROXY=x"]), None);
        assert_eq!(proxy("https://k8s:6443", &["https_proxy=https://c"]).unwrap(), "https://c/");
        assert_eq!(proxy("https://k8s:6443", &["HTTPS_PROXY=http://a b"]), None);
        for unusable in ["HTTPS_PROXY=ftp://a", "HTTPS_PROXY=socks4://a:1080"] {
            assert_eq!(proxy("https://k8s:6443", &[unusable]), None, "{unusable}");
        }
        for (socks, known) in [
            ("HTTPS_PROXY=socks5://u:p@a:1081", "socks5://u:p@a:1081/"),
            ("HTTPS_PROXY=SOCKS5://u:p@a/", "socks5://u:p@a:1080/"),
            ("HTTPS_PROXY=socks5h://[fd00::1]", "socks5h://[fd00::1]:1080/"),
        ] {
            assert_eq!(proxy("https://k8s:6443", &[socks]).unwrap(), known);
        }
        assert_eq!(proxy("https://k8s:6443", &["ALL_PROXY=http://a"]), None);
        let both = ["HTTPS_PROXY=http://a:1", "https_proxy=http://b:1"];
        assert_eq!(proxy("https://k8s", &both).unwrap(), "http://a:1/");
    }

    #[test]
    fn loopback_is_never_proxied() {
        for server in ["https://127.0.0.1:6443", "https://127.8.8.8", "https://[::1]:6443"] {
            assert_eq!(proxy(server, &["HTTPS_PROXY=http://a:3128"]), None, "{server}");
        }
        assert_eq!(proxy("https://LocalHost", &["HTTPS_PROXY=http://a:3128"]), None);
    }

    #[test]
    fn exceptions_are_names_addresses_and_ranges() {
        for (exceptions, server, is_proxied) in [
            ("*", "10.0.0.1:6443", false),
            ("other, *", "10.0.0.1:6443", false),
            ("10.0.0.0/8", "10.1.2.3:6443", false),
            ("10.0.0.0/8", "11.1.2.3:6443", true),
            ("10.0.0.0/8", "ten.example:6443", true),
            ("10.0.0.1", "10.0.0.1:6443", false),
            ("10.0.0.1:6443", "10.0.0.1:6443", false),
            ("10.0.0.1:443", "10.0.0.1:6443", true),
            ("10.0.0.1:443", "10.0.0.1", false),
            ("fd00::/8", "[fd00::1]:6443", false),
            ("fd00::1", "[fd00::1]:6443", false),
            ("[fd00::1]:6443", "[fd00::1]:6443", false),
            ("[fd00::1]:443", "[fd00::1]:6443", true),
            ("example.com", "example.com:6443", false),
            ("example.com", "api.Example.com:6443", false),
            ("example.com", "anexample.com:6443", true),
            (".example.com", "api.example.com:6443", false),
            (".example.com", "example.com:6443", true),
            ("*.example.com", "api.example.com:6443", false),
            ("*.example.com", "example.com:6443", true),
            ("example.com:443", "example.com:6443", true),
            // Entries that mean nothing are skipped.
            (",, ,example.com,", "example.com:6443", false),
            (":6443,10.0.0.0/99", "10.0.0.1:6443", true),
            ("", "10.0.0.1:6443", true),
        ] {
            let no_proxy = format!("NO_PROXY={exceptions}");
            let found = proxy(&format!("https://{server}"), &["HTTPS_PROXY=http://a", &no_proxy]);
            assert_eq!(found.is_some(), is_proxied, "{exceptions} for {server}");
        }
    }
}
