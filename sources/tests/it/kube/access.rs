//! Access: addresses, credentials and proxies.

use std::{
    env, fs, io,
    net::SocketAddr,
    os::fd::BorrowedFd,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use api_standin::{ClientCertificate, Options, Standin, load};
use serde_json::json;
use socket2::SockRef;
use switchyard_core::{
    error::ErrorChain,
    objects::{Event, Kind},
};
use switchyard_sources::kube::{self as source, KubeConfig, Timing};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time,
};

use crate::kube::rig::{AGENT, NODE, PATIENCE, Rig, apply, fill};

#[tokio::test]
async fn the_master_overrides_the_kubeconfig() {
    let server = Standin::start(Options::default()).await;
    fill(&server, 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let elsewhere = server.kubeconfig().replace(&server.url(), "https://192.0.2.1:6443");
    fs::write(&path, elsewhere).unwrap();
    let (sender, mut events) = mpsc::channel(64);
    let config = KubeConfig {
        kubeconfig: Some(path),
        master: Some(server.address().to_string()),
        ..KubeConfig::new(AGENT)
    };
    tokio::spawn(async move { source::run(config, NODE, sender).await });
    let event = time::timeout(PATIENCE, events.recv()).await.unwrap();
    assert!(matches!(event, Some(Event::Apply(_) | Event::Listed(_))));
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_is_an_error_without_its_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let with = |server: &str, user: &str| {
        format!(
            "clusters: [{{name: c, cluster: {{server: {server}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\n\
             users: [{{name: u, user: {user}}}]\n"
        )
    };
    let kubeconfigs = [
        ("invalid", with("a b", "{}"), "`a b`"),
        ("plugin", with("https://a", "{exec: {apiVersion: v}}"), "no command"),
        ("unparsed", with("https://a", "{token: secret, password: [}"), "line 4"),
        ("scalar", with("https://a", "secret"), "line 4"),
    ];
    for (name, text, _) in &kubeconfigs {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let absent = ("absent", String::new(), "absent");
    let files = kubeconfigs.into_iter().chain([absent]).map(|(name, _, part)| {
        let kubeconfig = Some(dir.path().join(name));
        (KubeConfig { kubeconfig, ..KubeConfig::new(AGENT) }, part)
    });
    let master = Some("http://u:secret@a b".to_owned());
    let master = KubeConfig { master, ..KubeConfig::new(AGENT) };
    for (config, part) in files.chain([(master, "`a b`"), (KubeConfig::new(AGENT), "pod")]) {
        let (sender, _events) = mpsc::channel::<Event>(1);
        let error = source::run(config, NODE, sender).await.unwrap_err();
        let error = ErrorChain(&error).to_string();
        assert!(error.contains(part) && !error.contains("secret"), "{error}");
    }
}

/// Cuts all connections and waits for a change after that.
async fn changes_follow(rig: &mut Rig) {
    rig.server.faults().cut_connections();
    apply(&rig.server, load::service(8));
    rig.until("a change after the cut", |rig| rig.has(Kind::Service, "svc-8")).await;
}

async fn standin() -> Standin {
    let server = Standin::start(Options::default()).await;
    fill(&server, 1);
    server
}

#[tokio::test]
async fn a_token_file_may_end_with_a_line_break_and_change() {
    let server = standin().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "standin-token\n").unwrap();
    // As in client-go, the file goes before the token.
    let user = format!("{{token: other, tokenFile: {}}}", path.display());
    let kubeconfig = server.kubeconfig_for(&user);
    let mut rig = Rig::with_kubeconfig(server, &kubeconfig, Timing::default()).await;
    rig.synced().await;
    rig.server.set_token("another");
    rig.server.faults().cut_connections();
    while rig.health.unauthorized(Kind::Service).is_none() {
        rig.wait(Duration::from_millis(10)).await;
    }
    fs::write(&path, "another\n").unwrap();
    changes_follow(&mut rig).await;
}

fn write_certificate(dir: &Path, certificate: &ClientCertificate) {
    fs::write(dir.join("client.crt"), &certificate.certificate_pem).unwrap();
    fs::write(dir.join("client.key"), &certificate.key_pem).unwrap();
}

#[tokio::test]
async fn certificate_files_are_read_again_when_the_certificate_has_expired() {
    let server = standin().await;
    let dir = tempfile::tempdir().unwrap();
    write_certificate(dir.path(), &server.issue_expired_certificate());
    let [cert, key] = ["client.crt", "client.key"].map(|name| dir.path().join(name));
    let user = format!("{{client-certificate: {cert:?}, client-key: {key:?}}}");
    let kubeconfig = server.kubeconfig_for(&user);
    let mut rig = Rig::with_kubeconfig(server, &kubeconfig, Timing::default()).await;
    while rig.health.failed(Kind::Service).is_none() {
        rig.wait(Duration::from_millis(10)).await;
    }
    let (_, why) = rig.health.failed(Kind::Service).unwrap();
    assert!(why.contains("alert"), "{why}");
    // Half of a pair is of no use, and no reason to stop.
    let certificate = rig.server.issue_certificate();
    fs::write(dir.path().join("client.crt"), &certificate.certificate_pem).unwrap();
    rig.wait(Duration::from_millis(2500)).await;
    assert!(rig.listed.is_empty());
    write_certificate(dir.path(), &certificate);
    rig.synced().await;
}

#[tokio::test]
async fn a_plugin_is_run_again_when_it_fails_or_the_server_rejects_its_certificate() {
    let server = standin().await;
    let dir = tempfile::tempdir().unwrap();
    let failed = dir.path().join("failed");
    let path = dir.path().join("credential.json");
    let write = |certificate: &ClientCertificate| {
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {
                "clientCertificateData": certificate.certificate_pem,
                "clientKeyData": certificate.key_pem,
            },
        });
        fs::write(&path, credential.to_string()).unwrap();
    };
    write(&server.issue_certificate());
    let version = "client.authentication.k8s.io/v1";
    let script = r#"test -e "$0" && cat "$1" || { touch "$0"; false; }"#;
    let user = json!({"exec": {
        "apiVersion": version, "interactiveMode": "Never",
        "command": "sh", "args": ["-c", script, failed, path],
    }});
    let user = user.to_string();
    let kubeconfig = server.kubeconfig_for(&user);
    let mut rig = Rig::with_kubeconfig(server, &kubeconfig, Timing::default()).await;
    rig.synced().await;
    rig.server.revoke_certificates();
    write(&rig.server.issue_certificate());
    changes_follow(&mut rig).await;
}

/// A proxy that connects to the stand-in, whatever the name that it is asked for: by HTTP, or by
/// SOCKS 5, which clients begin with a byte of value 5.
struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start(server: &Standin) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (target, names) = (server.address(), asked.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let names = names.clone();
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let name = match stream.fill_buf().await?.first() {
                        None => return Ok(()),
                        Some(5) => greet_by_socks(&mut stream).await?,
                        Some(_) => greet_by_http(&mut stream).await?,
                    };
                    names.lock().unwrap().push(name);
                    let mut server = TcpStream::connect(target).await?;
                    copy_bidirectional(&mut stream, &mut server).await.map(|_| ())
                });
            }
        });
        Self { address, asked }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.address)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Answers a client of an HTTP proxy, and returns its request.
async fn greet_by_http(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    Ok(head.lines().next().unwrap_or_default().to_owned())
}

/// Answers a client of a SOCKS 5 proxy (RFC 1928) that sends a user and a password (RFC 1929), and
/// returns both and the name and port that it asks for.
async fn greet_by_socks(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let text = async |stream: &mut BufReader<TcpStream>| {
        let mut text = vec![0; usize::from(stream.read_u8().await?)];
        stream.read_exact(&mut text).await?;
        io::Result::Ok(String::from_utf8_lossy(&text).into_owned())
    };
    assert_eq!(stream.read_u8().await?, 5);
    assert_eq!(text(stream).await?, "\u{2}", "by user and password");
    stream.write_all(&[5, 2]).await?;
    assert_eq!(stream.read_u8().await?, 1);
    let (user, password) = (text(stream).await?, text(stream).await?);
    stream.write_all(&[1, 0]).await?;
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    assert_eq!(request, [5, 1, 0, 3], "a connection to a name");
    let (name, port) = (text(stream).await?, stream.read_u16().await?);
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok(format!("{user} {password} {name}:{port}"))
}

/// The options of this process's sockets that are connected to an address: the seconds before a
/// probe, between probes and until data counts as lost, and the number of probes.
fn socket_options(peer: SocketAddr) -> Vec<[u64; 4]> {
    let sockets = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let number = entry.ok()?.file_name().into_string().ok()?.parse().ok()?;
        // SAFETY: the descriptor was open a moment ago and is only asked for options, which fails
        // if it is closed, or no socket.
        Some(unsafe { BorrowedFd::borrow_raw(number) })
    });
    let options = |fd: &BorrowedFd<'_>| {
        let socket = SockRef::from(fd);
        (socket.peer_addr().ok()?.as_socket()? == peer).then_some(())?;
        let lost = socket.tcp_user_timeout().ok()?.unwrap_or_default();
        let times = [socket.tcp_keepalive_time(), socket.tcp_keepalive_interval()];
        let [idle, interval] = times.map(|time| time.unwrap_or_default().as_secs());
        let probes = socket.tcp_keepalive_retries().ok()?;
        assert!(socket.keepalive().ok()?);
        Some([idle, interval, lost.as_secs(), probes.into()])
    };
    sockets.filter_map(|fd| options(&fd)).collect()
}

/// A host that disappears without a word is noticed in half a minute: by probes of idle
/// connections, and by data that stays unacknowledged.
#[tokio::test]
async fn dead_connections_are_noticed_by_the_kernel() {
    let mut rig = Rig::plain(|server| fill(server, 1)).await;
    rig.synced().await;
    let found = socket_options(rig.server.address());
    assert!(found.len() >= Kind::ALL.len(), "{found:?}");
    assert!(found.iter().all(|options| *options == [15, 5, 30, 3]), "{found:?}");

    let server = standin().await;
    let proxy = Proxy::start(&server).await;
    let mut rig = with_proxy_url(server, &proxy.url("http")).await;
    rig.synced().await;
    let found = socket_options(proxy.address);
    assert!(found.len() >= Kind::ALL.len(), "{found:?}");
    assert!(found.iter().all(|options| *options == [15, 5, 30, 3]), "{found:?}");
}

async fn with_proxy_url(server: Standin, proxy: &str) -> Rig {
    let line = format!("server: {}", server.url());
    let kubeconfig = server.kubeconfig().replace(&line, &format!("{line}\n    proxy-url: {proxy}"));
    Rig::with_kubeconfig(server, &kubeconfig, Timing::default()).await
}

#[tokio::test]
async fn the_proxy_of_the_kubeconfig_is_used() {
    let server = standin().await;
    let proxy = Proxy::start(&server).await;
    let address = server.address();
    let mut rig = with_proxy_url(server, &proxy.url("http")).await;
    rig.synced().await;
    assert_eq!(proxy.asked()[0], format!("CONNECT {address} HTTP/1.1"));
}

/// Runs [`a_source_with_proxy_variables`] in a process with these variables, and returns whether it
/// received objects.
async fn succeeds_with(kubeconfig: &str, variables: &[(&str, &str)]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    fs::write(&path, kubeconfig).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "kube::access::a_source_with_proxy_variables", "--ignored"])
        .env("TEST_KUBECONFIG", path)
        .envs(variables.iter().copied())
        .stderr(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "{text}");
    output.status.success()
}

#[tokio::test]
#[ignore = "run by `proxy_variables_are_heeded`, with variables"]
async fn a_source_with_proxy_variables() {
    let kubeconfig = env::var("TEST_KUBECONFIG").unwrap();
    let config = KubeConfig { kubeconfig: Some(kubeconfig.into()), ..KubeConfig::new(AGENT) };
    let (sender, mut events) = mpsc::channel(64);
    tokio::spawn(async move { source::run(config, NODE, sender).await.unwrap() });
    let event = time::timeout(Duration::from_secs(20), events.recv()).await.unwrap();
    assert!(matches!(event, Some(Event::Apply(_) | Event::Listed(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_variables_are_heeded() {
    let options = Options { names: vec!["api.test".to_owned()], ..Options::default() };
    let server = Standin::start(options).await;
    fill(&server, 1);
    let proxy = Proxy::start(&server).await;
    let port = server.address().port();
    let direct = server.kubeconfig();
    let named = direct.replace(&server.url(), &format!("https://api.test:{port}"));
    // Only the proxy knows the name.
    let variables = [("HTTPS_PROXY", &*proxy.url("http")), ("NO_PROXY", "b,,.test2")];
    assert!(succeeds_with(&named, &variables).await);
    assert_eq!(proxy.asked()[0], format!("CONNECT api.test:{port} HTTP/1.1"));
    let socks = format!("socks5://us%65r:secret@{}", proxy.address);
    assert!(succeeds_with(&named, &[("HTTPS_PROXY", &socks)]).await);
    let asked = proxy.asked();
    assert_eq!(*asked.last().unwrap(), format!("user secret api.test:{port}"));
    // Loopback is reached without a proxy, and so is what NO_PROXY names.
    let nowhere = ("HTTPS_PROXY", "http://127.0.0.1:1");
    assert!(succeeds_with(&direct, &[nowhere]).await);
    assert!(succeeds_with(&direct, &[nowhere, ("NO_PROXY", "*")]).await);
    assert_eq!(proxy.asked().len(), asked.len());
}
