//! What several crates ask of nf_tables, and the numbers of its interface ([`abi`]).

pub mod abi;

use self::abi::{generation, message};
use crate::{Error, Socket, Writer, flags, nfnetlink};

/// The generation of the rulesets, which each commit of anybody increases; `None` if the kernel has
/// no nf_tables.
pub fn generation(socket: &mut Socket) -> Result<Option<u32>, Error> {
    let sequence = socket.sequences(1);
    let mut request = Writer::new();
    let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, message::GET_GENERATION);
    request.message(kind, flags::ACK, sequence, |w| nfnetlink::header(w, 0, 0));
    let mut generation = None;
    let result = socket.request(request.as_slice(), sequence, |message| {
        let attribute = message.attributes(nfnetlink::HEADER).find_kind(generation::ID);
        generation = attribute.and_then(|attribute| attribute.be32());
        Ok(())
    });
    match result {
        Ok(()) => generation.map(Some).ok_or(Error::Malformed("no generation")),
        // nfnetlink's answer for an unknown subsystem.
        Err(Error::Kernel(error)) if error.errno == libc::EINVAL => Ok(None),
        Err(error) => Err(error),
    }
}
