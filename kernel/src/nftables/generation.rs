//! The generation of the rulesets.

use super::{
    abi::{generation, message},
    listing::get,
};
use crate::netlink::{Error, Reply, Socket, Writer, nfnetlink};

/// The generation of the rulesets, which each commit of anybody increases; `None` if the kernel has
/// no nf_tables.
pub fn generation(socket: &mut Socket) -> Result<Option<u32>, Error> {
    match get(socket, message::GET_GENERATION, 0, |_| {}, |read| read.be32(generation::ID)) {
        Ok(found) => found.flatten().map(Some).ok_or(Error::Malformed("no generation")),
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
