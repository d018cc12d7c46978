//! What the kernel tells of commits of others.

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use ::netlink::{
    Error, Message, Socket,
    nfnetlink::{self, subsystem::NFTABLES},
};

use super::abi::{ANY_TABLE, generation, message};
use crate::ruleset::{Family, TABLE};

/// `NFNLGRP_NFTABLES`
const GROUP: i32 = 7;

/// Listens to commits that touch our tables.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    families: Vec<Family>,
    /// The commit that is being told about touches one of our tables.
    touched: bool,
}

/// Who changed one of our tables, as far as the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Author {
    program: Option<String>,
    process: Option<u32>,
}

impl Author {
    const UNKNOWN: Self = Self { program: None, process: None };
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.program, self.process) {
            (Some(program), Some(process)) => write!(f, "{program} (process {process})"),
            (Some(program), None) => f.write_str(program),
            (None, Some(process)) => write!(f, "process {process}"),
            (None, None) => f.write_str("somebody"),
        }
    }
}

impl Listener {
    /// Listens for changes of the tables of these families, except by the socket with port `own`.
    pub(crate) fn open(own: u32, families: Vec<Family>) -> Result<Self, Error> {
        let socket = Socket::open(libc::NETLINK_NETFILTER)?;
        socket.ignore_requests_of(own)?;
        socket.join(GROUP)?;
        Ok(Self { socket, families, touched: false })
    }

    /// Takes in what the kernel has told. Returns who was the last to change our tables, if
    /// anybody did or if we cannot tell.
    pub(crate) fn take_in(&mut self) -> Result<Option<Author>, Error> {
        let mut author = None;
        loop {
            match self.socket.receive() {
                Ok(None) => return Ok(author),
                Ok(Some(datagram)) => {
                    for told in datagram {
                        if let Some(by) = author_of(&told) {
                            if std::mem::take(&mut self.touched) {
                                author = Some(by);
                            }
                        } else {
                            self.touched |= concerns(&self.families, &told);
                        }
                    }
                }
                // More was told than there is room for.
                Err(Error::Overrun) => author = Some(Author::UNKNOWN),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Who committed what was told before; `None` if this does not end a commit.
fn author_of(told: &Message<'_>) -> Option<Author> {
    if told.kind != nfnetlink::kind(NFTABLES, message::NEW_GENERATION) {
        return None;
    }
    let attributes = told.attributes(nfnetlink::HEADER);
    let program = attributes.find_kind(generation::PROGRAM).and_then(|name| name.str());
    let process = attributes.find_kind(generation::PROCESS).and_then(|id| id.be32());
    Some(Author { program: program.map(str::to_owned), process })
}

/// Whether an object is in one of our tables, or is one.
fn concerns(families: &[Family], told: &Message<'_>) -> bool {
    let family = told.payload.first();
    let is_ours = |ours: &Family| Some(&ours.number()) == family;
    families.iter().any(is_ours)
        && told
            .attributes(nfnetlink::HEADER)
            .find_kind(ANY_TABLE)
            .is_some_and(|name| name.str() == Some(TABLE))
}
