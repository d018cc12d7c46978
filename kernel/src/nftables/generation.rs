//! The generation of the rulesets.

use super::abi::{generation, message};
use crate::netlink::{Error, Reply, Socket, Writer, flags, nfnetlink};

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

/// Whether the rulesets are of this generation. Waits for the end of a commit that is going on, so
/// that all notifications of commits up to the answer were sent when this returns.
pub fn is_generation(socket: &mut Socket, generation: u32) -> Result<bool, Error> {
    // A batch of nothing changes nothing, but has to wait for its turn and to be of the generation.
    let begin = socket.sequences(2);
    let subsystem = nfnetlink::subsystem::NFTABLES;
    let mut batch = Writer::new();
    nfnetlink::batch_begin(&mut batch, subsystem, begin, Some(generation));
    nfnetlink::batch_end(&mut batch, subsystem, begin.wrapping_add(1));
    socket.send(batch.as_slice())?;
    let mut is_same = true;
    // A batch is done when `send` returns, and is answered only if the kernel refuses it.
    while let Some(datagram) = socket.receive()? {
        for message in datagram.filter(|message| message.sequence == begin) {
            match message.reply() {
                Some(Reply::Error(error)) if error.errno == libc::ERESTART => is_same = false,
                Some(Reply::Error(error)) => return Err(Error::Kernel(error)),
                _ => {}
            }
        }
    }
    Ok(is_same)
}

#[cfg(test)]
mod kernel_tests {
    use super::*;

    #[test]
    fn a_generation_is_the_current_one_or_not() {
        test_netns::in_namespace(|| {
            let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
            let current = generation(&mut socket).unwrap().unwrap();
            assert!(is_generation(&mut socket, current).unwrap());
            assert!(!is_generation(&mut socket, current.wrapping_add(1)).unwrap());
            // Asking is no commit.
            assert_eq!(generation(&mut socket).unwrap(), Some(current));
        });
    }
}
