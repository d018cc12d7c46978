//! The process with the proxy, on the node.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

use switchyard_core::{
    config::NodeConfig,
    model::PerFamily,
    objects::Event,
    proxier::{Backend, Proxier},
    testing::{NODE, Stepped, endpoint, service, slice},
};
use switchyard_nft::{NftBackend, NftConfig};
use switchyard_userspace::{CaptureMode, UserspaceBackend, UserspaceConfig};
use test_netns::{run as command, wait::until};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

use crate::hosts::{self, BULK, ECHO, SHORT, server};

/// The ways to the endpoints that need a process: with [`PLAIN`] and [`HAPROXY`], clients connect to
/// the node's address, otherwise to the cluster IPs of Services. [`REDIRECTED`] is the plain proxy
/// with as little of the kernel's translation as leads from there to it.
pub const PLAIN: &str = "plain";
pub const REDIRECTED: &str = "redirected";
pub const HAPROXY: &str = "haproxy";
pub const NFTABLES: &str = "nftables";
pub const REDIRECT: &str = "redirect";
pub const ADDRESSES: &str = "addresses";

/// Is the process of the proxy.
pub fn run(way: &str) {
    let config = |capture| {
        let mut config = UserspaceConfig::default();
        config.capture = Some(capture);
        config.families = PerFamily { v4: true, v6: false };
        config
    };
    let backend: Box<dyn Backend> = match way {
        PLAIN => return plain(),
        REDIRECTED => {
            let (service, node) = (hosts::service(0), hosts::NODE);
            command("nft add table ip plain");
            command("nft add chain ip plain to { type nat hook prerouting priority -100; }");
            command(&format!("nft add rule ip plain to ip daddr {service} dnat to {node}"));
            plain();
            command("nft delete table ip plain");
            return;
        }
        HAPROXY => return haproxy(),
        NFTABLES => Box::new(NftBackend::new(NftConfig::default())),
        REDIRECT => Box::new(UserspaceBackend::new(config(CaptureMode::Nftables))),
        ADDRESSES => Box::new(UserspaceBackend::new(config(CaptureMode::Addresses))),
        _ => panic!("no way is called {way}"),
    };
    let proxier: Box<dyn Proxier> =
        backend.probe().expect("the node can").open().expect("the backend opens");
    let mut node = Stepped::new(NodeConfig::new(NODE), proxier);
    hosts::serve(|request, words| {
        match request {
            // So many Services, each with the first endpoint.
            "services" => {
                let count: usize = hosts::word(words);
                node.sync((0..count).flat_map(|number| [made(number), endpoints(number, &[0])]));
            }
            _ => panic!("no request is called {request}"),
        }
        Vec::new()
    });
    node.clean_up();
}

fn made(number: usize) -> Event {
    service(&format!("s{number}"), &hosts::service(number).to_string())
        .port("bulk", "TCP", BULK.into())
        .port("short", "TCP", SHORT.into())
        .port("echo", "TCP", ECHO.into())
        .port("datagrams", "UDP", ECHO.into())
        .apply()
}

fn endpoints(number: usize, servers: &[u8]) -> Event {
    let made = slice(&format!("s{number}"), "a")
        .port("bulk", "TCP", BULK.into())
        .port("short", "TCP", SHORT.into())
        .port("echo", "TCP", ECHO.into())
        .port("datagrams", "UDP", ECHO.into());
    let ends = servers.iter().map(|number| endpoint(&server(*number).to_string(), "elsewhere"));
    ends.fold(made, |made, endpoint| made.endpoint(endpoint)).apply()
}

/// A proxy that accepts, connects and copies, and nothing else.
fn plain() {
    let runtime = Runtime::new().expect("threads");
    for port in [BULK, SHORT, ECHO] {
        let address = SocketAddr::from((hosts::NODE, port));
        let listener = runtime.block_on(TcpListener::bind(address)).expect("the port is free");
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, (server(0), port)));
            }
        });
    }
    hosts::serve(|_, _| Vec::new());
    runtime.shutdown_background();
}

async fn pass_on(mut client: TcpStream, to: (Ipv4Addr, u16)) -> std::io::Result<()> {
    let mut endpoint = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    endpoint.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut endpoint).await.map(drop)
}

/// Whether the program is installed.
pub fn has_haproxy() -> bool {
    Command::new("haproxy").arg("-v").stdout(Stdio::null()).status().is_ok()
}

/// HAProxy, as it comes.
fn haproxy() {
    let mut config = "defaults\nmode tcp\noption splice-auto\n".to_owned();
    for timeout in ["connect", "client", "server"] {
        config += &format!("timeout {timeout} 60s\n");
    }
    for port in [BULK, SHORT, ECHO] {
        let (node, server) = (hosts::NODE, server(0));
        config += &format!("listen s{port}\nbind {node}:{port}\nserver a {server}:{port}\n");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, config).expect("written");
    let mut child = Command::new("haproxy");
    let mut child = child.arg("-db").arg("-f").arg(file.path()).spawn().expect("HAProxy");
    until("HAProxy listens", || std::net::TcpStream::connect((hosts::NODE, ECHO)).is_ok());
    hosts::serve(|_, _| Vec::new());
    child.kill().and_then(|()| child.wait()).expect("HAProxy has run");
}
