//! The configuration of the running proxy, which the checks take if no flag names one.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
};

use rustix::process::geteuid;
use tokio::{net::unix::UCred, runtime};

use super::report::NotMade;
use crate::{
    backends,
    config::{self, Loaded, cli, flags::Flags},
    explain,
};

/// Returns the flags of the running proxy, overridden by `own`, and the configuration that these
/// lead to; `None` if no proxy answers.
///
/// # Errors
/// If a file that the proxy reads is another one here, or the words of the proxy cannot be trusted.
pub(super) fn of_proxy(own: &Flags) -> Result<Option<(Flags, Loaded)>, NotMade> {
    let Ok(stream) = UnixStream::connect(explain::socket(own)) else { return Ok(None) };
    let proxy = Proxy(peer(stream)?);
    let flags = proxy.flags()?;
    for name in ["config", "kubeconfig", "manifests"] {
        proxy.shares(name, flags.text(name).unwrap_or_default())?;
    }
    if !proxy.is_own() && flags.text("master").is_some() {
        // It would get the credentials in a file that the proxy itself may not read.
        return Err(NotMade("it names the API server by --master".to_owned()));
    }
    let flags = flags.overridden_by(own);
    let loaded = config::load(&flags, &backends::MODES)?;
    proxy.shares("kubeconfig", &loaded.config.client_connection.kubeconfig)?;
    Ok(Some((flags, loaded)))
}

fn peer(stream: UnixStream) -> io::Result<UCred> {
    stream.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    tokio::net::UnixStream::from_std(stream)?.peer_cred()
}

/// The process that answers at the local socket.
struct Proxy(UCred);

impl Proxy {
    fn is_own(&self) -> bool {
        self.0.uid() == geteuid().as_raw()
    }

    /// The path of what `/proc` has of the process, which has no number here if its PID namespace
    /// is another.
    fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.0.pid().unwrap_or(0)).into()
    }

    fn flags(&self) -> Result<Flags, NotMade> {
        let uid = self.0.uid();
        if !self.is_own() && !geteuid().is_root() {
            return Err(NotMade(format!(
                "it is the user {uid}'s: run this as that user, or as root"
            )));
        }
        let line = fs::read(self.proc("cmdline"))?;
        let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
        let parsed = cli::parse(words.map(|word| OsStr::from_bytes(word).to_owned()));
        let not_understood = |_| NotMade("its command line is not this program's".to_owned());
        Ok(parsed.map_err(not_understood)?.flags)
    }

    /// Returns an error unless the file that the proxy has at `path` is the file here, and, for
    /// another user's proxy, has what root alone has written: a kubeconfig names a program.
    fn shares(&self, flag: &str, path: &str) -> Result<(), NotMade> {
        if path.is_empty() {
            return Ok(());
        }
        let not = |why: &str| NotMade(format!("{flag} {path} is {why}"));
        let base = self.proc(if path.starts_with('/') { "root" } else { "cwd" });
        let file = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
        let there = file(&base.join(path.trim_start_matches('/')))
            .map_err(|error| not(&format!("not seen as the proxy sees it: {error}")))?;
        if file(Path::new(path)).ok() != Some(there) {
            return Err(not("another file here: run this in the proxy's pod or directory"));
        }
        if !self.is_own() && !is_roots(path)? {
            return Err(not("not root's alone to write: run this as the proxy's user"));
        }
        Ok(())
    }
}

/// Whether root alone can change what is at a path.
fn is_roots(path: &str) -> io::Result<bool> {
    let may_others_write = |path: &Path| -> io::Result<bool> {
        let file = fs::symlink_metadata(path)?;
        // In a sticky directory, others do not replace what is root's.
        let is_kept = file.is_symlink() || file.is_dir() && file.mode() & 0o1000 != 0;
        Ok(file.uid() != 0 || file.mode() & 0o022 != 0 && !is_kept)
    };
    let named = env::current_dir()?.join(path);
    let real = fs::canonicalize(path)?;
    for part in named.ancestors().chain(real.ancestors()) {
        if may_others_write(part)? {
            return Ok(false);
        }
    }
    Ok(true)
}
