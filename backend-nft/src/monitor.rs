//! Notices that another program changes our tables: another proxy, a firewall that is reloaded,
//! `nft flush ruleset`.
//!
//! The kernel notifies its listeners of what each commit changes, and of the program that made it.
//! It leaves out our own commits, so that listening costs nothing until another program touches a
//! table of ours.

use std::{
    fs,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use switchyard_core::proxier::{self, ExternalChange, Mode, ProxierError};
use switchyard_kernel::nftables::netlink::{Listener, Touched};

/// The objects that other programs have changed, which the monitor notes and a resync takes.
#[derive(Clone, Default)]
pub(crate) struct Noted(Arc<Mutex<Touched>>);

impl Noted {
    pub(crate) fn add(&self, touched: Touched) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(touched);
    }

    /// Takes everything that was noted. Without a monitor, that is never all.
    pub(crate) fn take(&self) -> Touched {
        let noted = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let is_watched = Arc::strong_count(&self.0) > 1;
        Touched { anything: noted.anything || !is_watched, ..noted }
    }
}

/// A monitor of our tables.
pub(crate) struct Monitor {
    pub(crate) listener: Listener,
    pub(crate) noted: Noted,
}

#[async_trait]
impl proxier::Monitor for Monitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let (author, touched) = self.listener.changed().await.map_err(|error| {
            // What was read before the error is lost.
            self.noted.add(Touched::anything());
            ProxierError::backend(Mode::NFTABLES, "cannot watch the tables", error)
        })?;
        self.noted.add(touched);
        Ok(ExternalChange::Changed { by: Some(of_process(author.to_string())) })
    }

    /// The kernel reports all commits, or that reports were lost.
    fn misses_nothing(&self) -> bool {
        true
    }
}

/// Returns an author by its process, as tools show it, in place of the thread that the kernel
/// reports, if that still lives and is seen here.
fn of_process(author: String) -> String {
    let process = || {
        let (thread, id) = author.strip_suffix(')')?.rsplit_once(" (process ")?;
        let read = |id: &str, name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).ok();
        // In another PID namespace, the number is that of another thread.
        (read(id, "comm")?.trim_end() == thread).then_some(())?;
        let status = read(id, "status")?;
        let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim();
        Some(format!("{} (process {leader})", read(leader, "comm")?.trim_end()))
    };
    process().unwrap_or(author)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_author_is_a_process_and_no_thread() {
        let found = || {
            let link = fs::read_link("/proc/thread-self").unwrap();
            let id = link.file_name().unwrap().to_str().unwrap().to_owned();
            ["engine", "other"].map(|name| of_process(format!("{name} (process {id})")))
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(found).unwrap();
        let [ours, other] = thread.join().unwrap();
        let id = std::process::id();
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        assert_eq!(ours, format!("{} (process {id})", name.trim_end()));
        assert!(other.starts_with("other (process "), "{other}");
    }
}
