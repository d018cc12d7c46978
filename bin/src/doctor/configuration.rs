//! The configuration of the running proxy, which the checks take if no flag names one.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, net::UnixStream},
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
/// If the proxy is another user's, as a kubeconfig may name a program to run, or does not have the
/// files that are here.
pub(super) fn of_proxy(own: &Flags) -> Result<Option<(Flags, Loaded)>, NotMade> {
    let Ok(stream) = UnixStream::connect(explain::socket(own)) else { return Ok(None) };
    let proxy = peer(stream)?;
    let user = proxy.uid();
    if user != geteuid().as_raw() {
        return Err(NotMade(format!("it is the user {user}'s: run this as that user")));
    }
    let not_seen = || NotMade("its process is not seen here: run this in its container".to_owned());
    // A process of another PID namespace has no number here.
    let id = proxy.pid().filter(|id| *id > 0).ok_or_else(not_seen)?;
    let shares = |name: &str| -> Result<bool, NotMade> {
        let there = fs::read_link(format!("/proc/{id}/{name}"));
        let there =
            there.map_err(|error| NotMade(format!("its process cannot be read: {error}")))?;
        Ok(there == fs::read_link(format!("/proc/self/{name}"))?)
    };
    if !shares("ns/mnt")? {
        return Err(NotMade("its files are others: run this in its container".to_owned()));
    }
    let line = fs::read(format!("/proc/{id}/cmdline"))?;
    let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
    let parsed = cli::parse(words.map(|word| OsStr::from_bytes(word).to_owned()));
    let not_understood = |_| NotMade("its command line is not this program's".to_owned());
    let flags = parsed.map_err(not_understood)?.flags;
    let is_here = shares("cwd")?;
    let check = |path: &str| match path.is_empty() || path.starts_with('/') || is_here {
        true => Ok(()),
        false => Err(NotMade(format!("{path} is in its directory: run this there"))),
    };
    for name in ["config", "kubeconfig", "manifests"] {
        check(flags.text(name).unwrap_or_default())?;
    }
    let flags = flags.overridden_by(own);
    let loaded = config::load(&flags, &backends::MODES)?;
    check(&loaded.config.client_connection.kubeconfig)?;
    Ok(Some((flags, loaded)))
}

fn peer(stream: UnixStream) -> io::Result<UCred> {
    stream.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    tokio::net::UnixStream::from_std(stream)?.peer_cred()
}
