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
    error::{ControlPlaneError, Result},
    objects,
    programs::Programs,
    users::{self, User},
};

/// The time that the servers have to become ready.
const READY: Duration = Duration::from_secs(60);

/// The key that signs tokens of service accounts, which no test uses, made anew for each server.
const KEY_FILE: &str = "service-accounts.key";

/// The ports of the servers on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
struct Ports {
    /// The port of the API server.
    api_server: u16,
    /// The port of etcd for its client.
    etcd: u16,
    /// The port of etcd for other members, of which there are none.
    etcd_peers: u16,
}

impl Ports {
    /// Three ports that are free in the namespace of the process at this moment.
    fn free() -> Result<Self> {
        let listen = || TcpListener::bind("127.0.0.1:0").map_err(ControlPlaneError::Port);
        // Held until all are known, so that they differ.
        let [a, b, c] = [listen()?, listen()?, listen()?];
        let port = |listener: &TcpListener| {
            listener.local_addr().map(|address| address.port()).map_err(ControlPlaneError::Port)
        };
        Ok(Self { api_server: port(&a)?, etcd: port(&b)?, etcd_peers: port(&c)? })
    }
}

/// The way that the servers are started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More flags of the API server.
    pub flags: Vec<String>,
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
    ///
    /// # Errors
    ///
    /// If a program cannot be run, or if the API server is not ready in time; the error has the
    /// logs.
    pub async fn start(programs: Programs, options: Options) -> Result<Self> {
        let ports = Ports::free()?;
        let directory = tempfile::Builder::new().prefix("control-plane-").tempdir();
        let directory = directory
            .map_err(|source| ControlPlaneError::File { path: std::env::temp_dir(), source })?;
        let etcd = start_etcd(&programs, ports, directory.path())?;
        let mut server =
            Self { programs, options, ports, api_server: None, etcd, directory, client: None };
        server.write("tokens.csv", &users::tokens())?;
        for user in User::ALL {
            let authority = server.file("certificates/apiserver.crt");
            let text = user.kubeconfig(&server.url(), &authority.to_string_lossy());
            server.write(user.file(), &text)?;
        }
        server.make_key()?;
        server.start_api_server().await?;
        Ok(server)
    }

    /// The URL of the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    /// The kubeconfig of a user.
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
    ///
    /// # Errors
    ///
    /// If the program cannot be run, or if it is not ready in time.
    pub async fn start_api_server(&mut self) -> Result<()> {
        self.stop_api_server();
        self.api_server = Some(self.run_api_server()?);
        let started = Instant::now();
        loop {
            // The file with the certificates exists from the first start on.
            let last = match self.is_ready().await {
                Ok(client) => {
                    self.client = Some(client);
                    return Ok(());
                }
                Err(last) => last,
            };
            let ended = self.api_server.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || started.elapsed() > scaled(READY) {
                let logs = ["etcd.log", "api-server.log"].map(|name| self.end_of(name)).concat();
                return Err(ControlPlaneError::NotReady { waited: started.elapsed(), last, logs });
            }
            time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates an object, or replaces the one of the same name, with its status.
    ///
    /// # Errors
    ///
    /// If the object's kind is none that tests use, or if the server refuses the object.
    pub async fn apply(&self, object: Value) -> Result<()> {
        objects::apply(self.client()?, &object).await
    }

    /// Deletes an object, of which only the kind, the namespace and the name count.
    ///
    /// # Errors
    ///
    /// If there is no such object, or if the server refuses the request.
    pub async fn delete(&self, object: &Value) -> Result<()> {
        objects::delete(self.client()?, object).await
    }

    /// A client of the administrator.
    ///
    /// # Errors
    ///
    /// If the API server has never been ready.
    pub fn client(&self) -> Result<&Client> {
        self.client.as_ref().ok_or_else(|| ControlPlaneError::Client("not started".into()))
    }

    async fn is_ready(&self) -> Result<Client, String> {
        let client = self.administrator().await.map_err(|error| packet_rig::chain(&error))?;
        let request = http::Request::get("/readyz").body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let answer = time::timeout(Duration::from_secs(2), client.request_text(request)).await;
        match answer.map_err(|_| "no answer within two seconds")? {
            Ok(_) => Ok(client),
            Err(error) => Err(packet_rig::chain(&error)),
        }
    }

    async fn administrator(&self) -> Result<Client> {
        let failed =
            |error: Box<dyn std::error::Error + Send + Sync>| ControlPlaneError::Client(error);
        let path = self.kubeconfig(User::Administrator);
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(error.into()))?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Client::try_from(config.map_err(|error| failed(error.into()))?)
            .map_err(|error| failed(error.into()))
    }

    fn run_api_server(&self) -> Result<Child> {
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
        self.run(command, &self.programs.api_server, "api-server.log")
    }

    /// Makes a key by `openssl`, which every machine with TLS has.
    fn make_key(&self) -> Result<()> {
        let program = PathBuf::from("openssl");
        let start = |source| ControlPlaneError::Start { program: program.clone(), source };
        let mut command = Command::new(&program);
        command.args(["genrsa", "-out"]).arg(self.file(KEY_FILE)).stderr(Stdio::null());
        let status = command.status().map_err(start)?;
        match status.success() {
            true => Ok(()),
            false => Err(start(std::io::Error::other(status.to_string()))),
        }
    }

    fn run(&self, command: Command, program: &Path, log: &str) -> Result<Child> {
        run(command, program, self.directory.path(), log)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.file(name);
        fs::write(&path, text).map_err(|source| ControlPlaneError::File { path, source })
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

fn start_etcd(programs: &Programs, ports: Ports, directory: &Path) -> Result<Child> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peers = format!("http://127.0.0.1:{}", ports.etcd_peers);
    let mut command = spawn::command(&programs.etcd);
    command.arg("--data-dir").arg(directory.join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.arg("--initial-cluster").arg(format!("default={peers}"));
    // The objects of a test need not outlive the machine.
    command.arg("--unsafe-no-fsync");
    run(command, &programs.etcd, directory, "etcd.log")
}

/// Runs a server in the directory. Its output is appended to the log.
fn run(mut command: Command, program: &Path, directory: &Path, log: &str) -> Result<Child> {
    let path = directory.join(log);
    let open = File::options().create(true).append(true).open(&path);
    let log = open.map_err(|source| ControlPlaneError::File { path: path.clone(), source })?;
    let again = log.try_clone().map_err(|source| ControlPlaneError::File { path, source })?;
    command.current_dir(directory).stdin(Stdio::null()).stdout(log).stderr(again);
    let start = |source| ControlPlaneError::Start { program: program.to_owned(), source };
    spawn::spawn(command).map_err(start)
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
