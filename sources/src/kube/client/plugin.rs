//! Exec plugins, which are programs that print credentials.
//!
//! `kube` runs a plugin twice, without a limit of time, and again for each request that gives up
//! waiting for it, and accepts no other form of credentials when a token has expired.

use std::{io, pin::pin, process::Stdio, time::Duration};

use jiff::Timestamp;
use kube::config::ExecConfig;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    time::{self, Instant},
};

use super::{decoding_error, token::usable_token};

/// The most time that a plugin may take.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// The longest output of a plugin, in bytes.
const LONGEST: u64 = 1 << 20;
/// The time for which output is read after the plugin has ended, if another process holds the pipe.
const GRACE: Duration = Duration::from_secs(1);

/// The credentials that a plugin printed: a token, a certificate with its key, or both.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub(super) token: Option<String>,
    /// The certificate and the key, as PEM.
    pub(super) identity: Option<[String; 2]>,
    /// The time at which the plugin is to be run again.
    pub(super) expires: Option<Instant>,
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs a plugin. At the limit, its process group is killed.
///
/// # Errors
/// If the plugin cannot be run, fails, takes longer than the limit, or prints no credentials.
pub(super) async fn run(plugin: &ExecConfig, limit: Duration) -> io::Result<Credentials> {
    let mut child = command(plugin).spawn()?;
    let Ok(text) = time::timeout(limit, output(&mut child)).await else {
        // The number of the group is not used again before the child was waited for.
        if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {limit:?}")));
    };
    credentials(&text?)
}

/// Returns the command as client-go runs it, but never with a terminal. Its messages are the log's.
fn command(plugin: &ExecConfig) -> Command {
    let info = json!({
        "apiVersion": plugin.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": false, "cluster": plugin.cluster},
    });
    let mut command = Command::new(plugin.command.as_deref().unwrap_or_default());
    command.args(plugin.args.iter().flatten());
    for variable in plugin.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    command
}

/// Waits for the end of the plugin, and returns what it printed.
async fn output(child: &mut Child) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let stdout = child.stdout.take();
    let status = {
        let mut reading = pin!(async {
            match stdout {
                Some(stdout) => stdout.take(LONGEST).read_to_end(&mut text).await,
                None => Ok(0),
            }
        });
        tokio::select! {
            biased;
            read = &mut reading => {
                read?;
                child.wait().await?
            }
            status = child.wait() => {
                // Without an end, what was read is all.
                time::timeout(GRACE, reading).await.unwrap_or(Ok(0))?;
                status?
            }
        }
    };
    match status.success() {
        true => Ok(text),
        false => Err(io::Error::other(status.to_string())),
    }
}

/// Returns the credentials in the output, which may be JSON or YAML.
fn credentials(text: &[u8]) -> io::Result<Credentials> {
    let credential: ExecCredential =
        serde_saphyr::from_slice(text).map_err(|error| invalid(decoding_error(&error)))?;
    let status = credential.status.ok_or_else(|| invalid("the answer has no status"))?;
    let expires = match status.expiration_timestamp {
        Some(text) => {
            let at: Timestamp = text
                .parse()
                .map_err(|error| invalid(format!("expirationTimestamp {text}: {error}")))?;
            let left = Timestamp::now().duration_until(at).try_into().unwrap_or_default();
            // A time beyond all clocks is no limit.
            Instant::now().checked_add(left)
        }
        None => None,
    };
    let token = status.token.filter(|token| !token.is_empty());
    let token = token.map(|token| usable_token(&token)).transpose()?;
    let identity = match (status.client_certificate_data, status.client_key_data) {
        (Some(certificate), Some(key)) => Some([certificate, key]),
        _ => None,
    };
    if token.is_none() && identity.is_none() {
        return Err(invalid("the answer has neither a token nor a certificate and its key"));
    }
    Ok(Credentials { token, identity, expires })
}

/// Whether the output of an exec plugin has credentials.
#[cfg(feature = "testing")]
pub fn has_credentials(output: &[u8]) -> bool {
    credentials(output).is_ok()
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any test takes.
    const LONG: Duration = Duration::from_secs(300);

    async fn run_script(script: &str, limit: Duration) -> Result<Credentials, String> {
        let plugin = ExecConfig {
            command: Some("sh".to_owned()),
            args: Some(vec!["-c".to_owned(), script.to_owned()]),
            ..serde_json::from_value(json!({"apiVersion": "v"})).unwrap()
        };
        run(&plugin, limit).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn credentials_are_a_token_or_a_certificate_with_its_key() {
        let found = run_script("echo 'status: {token: t}'", LONG).await.unwrap();
        assert_eq!((found.token.as_deref(), found.identity), (Some("t"), None));
        for (status, part) in [
            ("kind: ExecCredential", "no status"),
            ("status: {}", "neither"),
            ("status: {clientCertificateData: c}", "neither"),
            (r#"status: {token: "a\u0001b"}"#, "characters"),
            ("status: {token: t, expirationTimestamp: later}", "expirationTimestamp"),
            ("status: {token: secret, x: [", "line 1"),
            ("status: secret", "line 1"),
        ] {
            let error = run_script(&format!("printf '%s' '{status}'"), LONG).await.unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{status}: {error}");
        }
        let error = run_script("echo 'status: {token: t}'; exit 3", LONG).await.unwrap_err();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! >{}; wait", path.display());
        let error = run_script(&script, Duration::from_millis(500)).await.unwrap_err();
        assert!(error.contains("no answer"), "{error}");
        let pid = std::fs::read_to_string(&path).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // A zombie waits for its new parent.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_a_plugin_leaves_behind_is_not_waited_for() {
        let script = "sleep 10 & echo 'status: {token: t}'";
        let found = run_script(script, Duration::from_secs(5)).await.unwrap();
        assert_eq!(found.token.as_deref(), Some("t"));
    }

    #[tokio::test]
    async fn a_plugin_that_prints_without_end_is_an_error() {
        let error = run_script("exec yes", LONG).await.unwrap_err();
        assert!(error.contains("signal: 13"), "{error}");
    }
}
