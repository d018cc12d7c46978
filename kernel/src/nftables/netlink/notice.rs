//! The kernel's notifications of commits of other programs.

use std::{fmt, fs, mem, sync::Arc};

use crate::{
    netlink::{
        Awaited, Error, Membership, Message, Socket,
        nfnetlink::{self, subsystem::NFTABLES},
    },
    nftables::{
        abi::{ANY_TABLE, GROUP, generation, message},
        ruleset::Table,
    },
};

use super::touched::Touched;

/// Listens to commits that touch some tables.
#[derive(Debug)]
pub struct Listener {
    socket: Awaited,
    membership: Arc<Membership>,
    tables: Vec<Table>,
    /// The changes in watched tables by the commit whose notifications are being read.
    touched: Option<Touched>,
}

/// The program that changed a table, as far as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    program: Option<String>,
    process: Option<u32>,
}

impl Author {
    const UNKNOWN: Self = Self { program: None, process: None };

    /// Returns the author by its process, as tools show it, in place of the thread that the kernel
    /// reports, if that still lives and is seen here.
    #[must_use]
    pub fn into_process(self) -> Self {
        let process = || {
            let (thread, id) = self.program.as_ref().zip(self.process)?;
            let read = |id: u32, name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).ok();
            // In another PID namespace, the number is that of another thread.
            (read(id, "comm")?.trim_end() == thread).then_some(())?;
            let status = read(id, "status")?;
            let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
            let leader = leader.trim().parse().ok()?;
            let program = read(leader, "comm")?.trim_end().to_owned();
            Some(Self { program: Some(program), process: Some(leader) })
        };
        let found = process();
        found.unwrap_or(self)
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.program, self.process) {
            (Some(program), Some(process)) => write!(f, "{program} (process {process})"),
            (Some(program), None) => f.write_str(program),
            (None, Some(process)) => write!(f, "process {process}"),
            (None, None) => f.write_str("an unknown program"),
        }
    }
}

impl Listener {
    /// Listens for changes of `tables`, in the network namespace of the calling thread. Changes by
    /// the sockets with the ports `own` are left out ([`crate::nftables::Transport::port`]).
    pub fn open(own: &[u32], tables: Vec<Table>) -> Result<Self, Error> {
        let socket = Socket::open(libc::NETLINK_NETFILTER)?;
        socket.ignore_requests_of(own)?;
        socket.join(GROUP)?;
        let membership = Arc::new(socket.membership(GROUP)?);
        Ok(Self { socket: Awaited::new(socket), membership, tables, touched: None })
    }

    /// The membership by which the kernel notifies this listener, for
    /// [`crate::nftables::Transport::commit_unheard`].
    pub fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.membership)
    }

    /// Waits until another program has changed a watched table, and returns the author of the last
    /// change, and what was changed. If notifications were lost, the author is unknown.
    /// Cancel-safe. The listener belongs to the runtime that first polls this.
    pub async fn changed(&mut self) -> Result<(Author, Touched), Error> {
        loop {
            let socket = self.socket.ready().await?;
            if let Some(changed) = read_changes(socket, &self.tables, &mut self.touched)? {
                return Ok(changed);
            }
        }
    }
}

/// Reads all pending notifications. Returns the author of the last change of one of these tables,
/// and what was changed; `None` if there was no such change.
fn read_changes(
    socket: &mut Socket,
    tables: &[Table],
    pending: &mut Option<Touched>,
) -> Result<Option<(Author, Touched)>, Error> {
    let mut changed: Option<(Author, Touched)> = None;
    let mut note = |author, touched| {
        let (last, all) = changed.get_or_insert_with(|| (Author::UNKNOWN, Touched::default()));
        *last = author;
        all.extend(touched);
    };
    let mut is_cut = false;
    loop {
        match socket.receive() {
            Ok(None) => {
                if is_cut {
                    // The end of its commit may be lost.
                    *pending = None;
                }
                return Ok(changed);
            }
            Ok(Some(datagram)) => {
                for notification in datagram {
                    if let Some((author, generation)) = commit(&notification) {
                        if let Some(mut touched) = mem::take(pending) {
                            match generation {
                                Some(generation) => touched.committed(generation),
                                None => touched.anything = true,
                            }
                            note(author, touched);
                        }
                    } else if let Some(table) = tables.iter().find(|t| is_about(t, &notification)) {
                        pending.get_or_insert_default().add(table, &notification);
                    }
                }
            }
            // The receive buffer was too small, so that notifications were lost.
            Err(Error::Overrun) => {
                // What there was room for is yet to be read.
                is_cut = true;
                note(Author::UNKNOWN, Touched::anything());
            }
            Err(error) => return Err(error),
        }
    }
}

/// The author and the generation of the commit that this notification ends; `None` if it does not
/// end a commit.
fn commit(notification: &Message<'_>) -> Option<(Author, Option<u32>)> {
    if !ends_commit(notification) {
        return None;
    }
    let attributes = notification.attributes(nfnetlink::HEADER);
    let program = attributes.text(generation::PROGRAM).map(str::to_owned);
    let author = Author { program, process: attributes.be32(generation::PROCESS) };
    Some((author, attributes.be32(generation::ID)))
}

/// Whether a notification ends those of a commit.
pub(super) fn ends_commit(notification: &Message<'_>) -> bool {
    notification.kind == nfnetlink::kind(NFTABLES, message::NEW_GENERATION)
}

/// Whether a notification is about the table, or about an object in it.
pub(super) fn is_about(table: &Table, notification: &Message<'_>) -> bool {
    let family = notification.payload.first();
    let name = notification.attributes(nfnetlink::HEADER).text(ANY_TABLE);
    Some(&table.family.number()) == family && Some(table.name.as_str()) == name
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_author_is_a_process_and_no_thread() {
        let found = || {
            let link = fs::read_link("/proc/thread-self").unwrap();
            let id = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
            ["engine", "other"].map(|name| {
                let author = Author { program: Some(name.to_owned()), process: Some(id) };
                author.into_process().to_string()
            })
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(found).unwrap();
        let [ours, other] = thread.join().unwrap();
        let id = std::process::id();
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        assert_eq!(ours, format!("{} (process {id})", name.trim_end()));
        assert!(other.starts_with("other (process "), "{other}");
    }
}
