//! What several crates ask of nf_tables (`linux/netfilter/nf_tables.h`).

use crate::{Error, Socket, Writer, flags, nfnetlink};

/// `NFT_MSG_GETGEN`
const GET_GENERATION: u8 = 16;
/// `NFTA_GEN_ID`
const GENERATION_ID: u16 = 1;

/// The generation of the rulesets, which each commit of anybody increases; `None` if the kernel has
/// no nf_tables.
pub fn generation(socket: &mut Socket) -> Result<Option<u32>, Error> {
    let sequence = socket.sequences(1);
    let mut request = Writer::new();
    let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, GET_GENERATION);
    request.message(kind, flags::ACK, sequence, |w| nfnetlink::header(w, 0, 0));
    let mut generation = None;
    let result = socket.request(request.as_slice(), sequence, |message| {
        let attribute = message.attributes(nfnetlink::HEADER).find_kind(GENERATION_ID);
        generation = attribute.and_then(|attribute| attribute.be32());
        Ok(())
    });
    match result {
        Ok(()) => generation.map(Some).ok_or(Error::Malformed("no generation")),
        // What nfnetlink says of a subsystem that it does not have.
        Err(Error::Kernel(error)) if error.errno == libc::EINVAL => Ok(None),
        Err(error) => Err(error),
    }
}
