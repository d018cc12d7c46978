//! A genuine API server and its etcd for other programs: prints the path of kube-proxy's
//! kubeconfig, then applies the manifest of each path that comes on standard input, and answers
//! with a line. Ends with its input.

use std::{
    error::Error,
    fs,
    io::{self, BufRead, Write},
};

use api_standin::control_plane::{ControlPlane, Options, Ports, Programs, User};
use serde_json::Value;

/// The ports, in a network namespace that has no other server.
const PORTS: Ports = Ports { api_server: 6443, etcd: 2379, etcd_peers: 2380 };

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let programs = Programs::find()?.ok_or("KUBE_APISERVER and ETCD are not set")?;
    let options = Options { ports: Some(PORTS), ..Options::default() };
    let server = ControlPlane::start(programs, options).await?;
    println!("{}", server.kubeconfig(User::KubeProxy).display());
    for path in io::stdin().lock().lines() {
        let path = path?;
        for object in serde_saphyr::from_multiple::<Value>(&fs::read_to_string(&path)?)? {
            server.apply(object).await?;
        }
        println!("{path}");
        io::stdout().flush()?;
    }
    Ok(())
}
