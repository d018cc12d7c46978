//! Tables of iptables-nft, read by netlink: nf_tables that have the names of iptables' tables.

use switchyard_model::IpFamily;

use crate::{
    families::family_number,
    netlink::{
        Error, Socket, Writer,
        nfnetlink::{self, subsystem::NFT_COMPAT},
    },
    nftables::{
        abi::{chain, message, rule},
        listing::{dump, get, target},
    },
    xtables::Table,
};

pub(crate) fn open() -> Result<Socket, Error> {
    Socket::open(libc::NETLINK_NETFILTER)
}

/// Reads the chains that `keep` selects by table and name.
pub(crate) fn chains(
    socket: &mut Socket,
    family: IpFamily,
    keep: impl Fn(Table, &str) -> bool,
) -> Result<Vec<(Table, String)>, Error> {
    dump(
        socket,
        message::GET_CHAIN,
        family_number(family),
        |_| {},
        |_, read| {
            let table = Table::from_name(read.text(chain::TABLE)?)?;
            let name = read.text(chain::NAME)?;
            keep(table, name).then(|| (table, name.to_owned()))
        },
    )
}

/// Whether the kernel has a match of x_tables, or can load its module.
pub(crate) fn has_match(socket: &mut Socket, family: IpFamily, name: &str) -> Result<bool, Error> {
    /// `NFNL_MSG_COMPAT_GET`, `NFTA_COMPAT_NAME`, `NFTA_COMPAT_REV`, `NFTA_COMPAT_TYPE`.
    const GET: u8 = 0;
    const NAME: u16 = 1;
    const REVISION: u16 = 2;
    const TYPE: u16 = 3;
    let asked = socket.carry_out(nfnetlink::kind(NFT_COMPAT, GET), 0, |w| {
        nfnetlink::header(w, family_number(family), 0);
        w.string(NAME, name);
        w.be32(REVISION, 0);
        w.be32(TYPE, 0);
    });
    match asked {
        Ok(()) => Ok(true),
        Err(Error::Kernel(error)) if error.errno == libc::ENOENT => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn has_chain(
    socket: &mut Socket,
    family: IpFamily,
    table: Table,
    name: &str,
) -> Result<bool, Error> {
    let fill = |w: &mut Writer| {
        w.string(chain::TABLE, table.name());
        w.string(chain::NAME, name);
    };
    let found = get(socket, message::GET_CHAIN, family_number(family), fill, |_| ())?;
    Ok(found.is_some())
}

/// Reads rules: from all chains, or from one. `read` gets the table, the chain, the handle, and the
/// chain that the rule leads to.
pub(crate) fn rules<T>(
    socket: &mut Socket,
    family: IpFamily,
    only: Option<(Table, &str)>,
    read: impl Fn(Table, &str, u64, Option<&str>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let narrow = |w: &mut Writer| {
        if let Some((table, chain)) = only {
            w.string(rule::TABLE, table.name());
            w.string(rule::CHAIN, chain);
        }
    };
    dump(socket, message::GET_RULE, family_number(family), narrow, |_, found| {
        let table = Table::from_name(found.text(rule::TABLE)?)?;
        read(table, found.text(rule::CHAIN)?, found.be64(rule::HANDLE)?, target(found))
    })
}
