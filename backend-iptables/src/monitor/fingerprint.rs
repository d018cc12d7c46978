//! Something cheap to ask the kernel for that differs when rules have changed.
//!
//! Of legacy tables that is their size, number of entries and where the built-in chains begin and
//! end (`IPT_SO_GET_INFO`); of nftables the number of its generation, which each commit increases.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    mem::MaybeUninit,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use netlink::{
    Socket, Writer, flags,
    nfnetlink::{self, subsystem},
};
use proxy_core::model::IpFamily;

use crate::{
    layout::Table,
    tool::{Flavour, Programs},
};

/// The same as long as nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Asks the kernel; `None` if it does not say.
    pub(crate) fn read(programs: &Programs) -> Option<Self> {
        match programs.flavour {
            Flavour::Legacy => legacy(programs.family).map(|tables| {
                let mut hasher = DefaultHasher::new();
                tables.hash(&mut hasher);
                Self(hasher.finish())
            }),
            Flavour::Nft => generation().map(|generation| Self(generation.into())),
        }
    }
}

/// `NF_INET_NUMHOOKS`
const HOOKS: usize = 5;
/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`
const GET_INFO: libc::c_int = 64;

/// `struct ipt_getinfo`, which is the same as `struct ip6t_getinfo`.
#[repr(C)]
#[derive(Clone, Copy, Hash)]
struct TableInfo {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; HOOKS],
    underflow: [u32; HOOKS],
    entries: u32,
    size: u32,
}

fn legacy(family: IpFamily) -> Option<[TableInfo; Table::ALL.len()]> {
    let (domain, level) = match family {
        IpFamily::V4 => (libc::AF_INET, libc::IPPROTO_IP),
        IpFamily::V6 => (libc::AF_INET6, libc::IPPROTO_IPV6),
    };
    // SAFETY: no pointers are passed.
    let fd =
        unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor is new, so nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut infos = [None; Table::ALL.len()];
    for (info, table) in infos.iter_mut().zip(Table::ALL) {
        *info = Some(table_info(&socket, level, table)?);
    }
    let [Some(mangle), Some(filter), Some(nat)] = infos else { return None };
    Some([mangle, filter, nat])
}

fn table_info(socket: &OwnedFd, level: libc::c_int, table: Table) -> Option<TableInfo> {
    let mut info = MaybeUninit::<TableInfo>::zeroed();
    let name = table.name().as_bytes();
    // SAFETY: `name` is a field of the structure, which is zeroed and longer than any table's
    // name; the kernel reads nothing else of it.
    unsafe {
        (&raw mut (*info.as_mut_ptr()).name).cast::<u8>().copy_from(name.as_ptr(), name.len())
    };
    let mut length = size_of::<TableInfo>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of what it is given.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            GET_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    // SAFETY: all fields are numbers, for which any bytes will do, and all were set to zero.
    (result == 0).then(|| unsafe { info.assume_init() })
}

/// `NFT_MSG_GETGEN` and `NFTA_GEN_ID`
const GET_GENERATION: u8 = 16;
const GENERATION_ID: u16 = 1;

fn generation() -> Option<u32> {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).ok()?;
    let sequence = socket.sequences(1);
    let mut request = Writer::new();
    let kind = nfnetlink::kind(subsystem::NFTABLES, GET_GENERATION);
    request.message(kind, flags::ACK, sequence, |w| nfnetlink::header(w, 0, 0));
    let mut generation = None;
    let read = socket.request(request.as_slice(), sequence, |message| {
        let id = message.attributes(nfnetlink::HEADER).find_kind(GENERATION_ID);
        generation = id.and_then(|id| id.be32());
        Ok(())
    });
    read.ok().and(generation)
}
