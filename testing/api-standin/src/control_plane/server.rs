//! The two servers: their start, their end, and a restart of the API server.

use std::{
    fmt, fs,
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use packet_rig::{spawn, wait::scaled};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time;

use super::{
    objects,
    programs::Programs,
    seed,
    users::{self, User},
};
use crate::store::Store;

/// The time that the servers have to become ready.
pub(super) const READY: Duration = Duration::from_secs(60);

/// The key that signs tokens of service accounts, which no test uses, made anew for each server.
const KEY_FILE: &str = "service-accounts.key";

/// The ports of the servers on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
struct Ports {
    api_server: u16,
    /// The port of etcd for its client.
    etcd: u16,
    /// The port of etcd for other members, of which there are none.
    etcd_peers: u16,
}

impl Ports {
    /// Three ports that are free in the namespace of the process at this moment.
    fn free() -> Self {
        // Held until all are known, so that they differ.
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [api_server, etcd, etcd_peers] =
            listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
        Self { api_server, etcd, etcd_peers }
    }
}

/// The way that the servers are started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More flags of the API server.
    pub flags: Vec<String>,
    /// The objects that are in etcd before the API server starts.
    pub objects: Option<Store>,
}

/// A running API server with its etcd. Both end when the value is dropped.
pub struct ControlPlane {
    programs: Programs,
    options: Options,
    ports: Ports,
    api_server: Option<Child>,
    etcd: Child,
    directory: TempDir,
    client: Option<Client>,
}

impl ControlPlane {
    /// Starts both servers, and waits until the API server is ready.
    pub async fn start(programs: Programs, options: Options) -> Self {
        let ports = Ports::free();
        let directory = tempfile::Builder::new().prefix("control-plane-").tempdir().unwrap();
        let etcd = start_etcd(&programs, ports, directory.path());
        let mut server =
            Self { programs, options, ports, api_server: None, etcd, directory, client: None };
        server.write("tokens.csv", &users::tokens());
        for user in User::ALL {
            let authority = server.file("certificates/apiserver.crt");
            let text = user.kubeconfig(&server.url(), &authority.to_string_lossy());
            server.write(user.file(), &text);
        }
        server.make_key();
        if let Some(objects) = &server.options.objects {
            seed::put(&format!("http://127.0.0.1:{}", ports.etcd), objects).await;
        }
        server.start_api_server().await;
        server
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    pub fn kubeconfig(&self, user: User) -> PathBuf {
        self.file(user.file())
    }

    /// Ends the API server with `SIGKILL`; etcd keeps the objects.
    pub fn stop_api_server(&mut self) {
        if let Some(mut child) = self.api_server.take() {
            end(&mut child);
        }
    }

    /// Starts the API server, (again) with the same port, and waits until it is ready.
    pub async fn start_api_server(&mut self) {
        self.stop_api_server();
        self.api_server = Some(self.run_api_server());
        let started = Instant::now();
        loop {
            // The file with the certificates exists from the first start on.
            let last = match self.is_ready().await {
                Ok(client) => {
                    self.client = Some(client);
                    return;
                }
                Err(last) => last,
            };
            let ended = self.api_server.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || started.elapsed() > scaled(READY) {
                let logs = ["etcd.log", "api-server.log"].map(|name| self.end_of(name)).concat();
                panic!("the API server is not ready after {:?}: {last}\n{logs}", started.elapsed());
            }
            time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates an object, or replaces the one of the same name, with its status.
    pub async fn apply(&self, object: Value) {
        objects::apply(self.client(), &object).await;
    }

    /// Deletes an object, of which only the kind, the namespace and the name count.
    pub async fn delete(&self, object: &Value) {
        objects::delete(self.client(), object).await;
    }

    /// A client of the administrator.
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("a server that was started")
    }

    async fn is_ready(&self) -> Result<Client, String> {
        let client = self.administrator().await?;
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        let answer = time::timeout(Duration::from_secs(2), client.request_text(request)).await;
        match answer.map_err(|_| "no answer within two seconds")? {
            Ok(_) => Ok(client),
            Err(error) => Err(packet_rig::chain(&error)),
        }
    }

    /// A client, which there is when the API server has written its certificate.
    async fn administrator(&self) -> Result<Client, String> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig(User::Administrator)).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let config = config.map_err(|error| packet_rig::chain(&error))?;
        Client::try_from(config).map_err(|error| packet_rig::chain(&error))
    }

    fn run_api_server(&self) -> Child {
        let file = |name: &str| self.file(name).to_string_lossy().into_owned();
        let mut command = spawn::command(&self.programs.api_server);
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports.etcd),
            format!("--secure-port={}", self.ports.api_server),
            "--bind-address=127.0.0.1".to_owned(),
            // A loopback address cannot be an endpoint of the Service `kubernetes`.
            "--endpoint-reconciler-type=none".to_owned(),
            "--advertise-address=192.0.2.1".to_owned(),
            format!("--cert-dir={}", file("certificates")),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default".to_owned(),
            format!("--service-account-key-file={}", file(KEY_FILE)),
            format!("--service-account-signing-key-file={}", file(KEY_FILE)),
            "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112".to_owned(),
        ]);
        command.args(&self.options.flags);
        run(command, self.directory.path(), "api-server.log")
    }

    /// Makes a key by `openssl`, which every machine with TLS has.
    fn make_key(&self) {
        let mut command = Command::new("openssl");
        command.args(["genrsa", "-out"]).arg(self.file(KEY_FILE)).stderr(Stdio::null());
        assert!(command.status().unwrap().success(), "openssl makes no key");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    /// The last lines of a log, under its name.
    fn end_of(&self, log: &str) -> String {
        let text = fs::read_to_string(self.file(log)).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(20)..];
        format!("--- {log}\n{}\n", last.join("\n"))
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, ports, directory, .. } = self;
        let mut debug = f.debug_struct("ControlPlane");
        debug.field("programs", programs).field("ports", ports).field("directory", directory);
        debug.finish_non_exhaustive()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.stop_api_server();
        end(&mut self.etcd);
    }
}

fn start_etcd(programs: &Programs, ports: Ports, directory: &Path) -> Child {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peers = format!("http://127.0.0.1:{}", ports.etcd_peers);
    let mut command = spawn::command(&programs.etcd);
    command.arg("--data-dir").arg(directory.join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.arg("--initial-cluster").arg(format!("default={peers}"));
    // The objects of a test need not outlive the machine.
    command.arg("--unsafe-no-fsync");
    run(command, directory, "etcd.log")
}

/// Runs a server in the directory. Its output is appended to the log.
fn run(mut command: Command, directory: &Path, log: &str) -> Child {
    let log = File::options().create(true).append(true).open(directory.join(log)).unwrap();
    let again = log.try_clone().unwrap();
    command.current_dir(directory).stdin(Stdio::null()).stdout(log).stderr(again);
    spawn::spawn(command).unwrap()
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
