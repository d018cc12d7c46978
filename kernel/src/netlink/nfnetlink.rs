//! The common part of netfilter's protocols: a header after netlink's, and batches of one
//! subsystem.

use crate::netlink::{Writer, flags};

/// The length of `struct nfgenmsg`: family, version, resource.
pub const HEADER: usize = 4;

/// Subsystems (`NFNL_SUBSYS_*`): the upper byte of a message's type.
pub mod subsystem {
    /// Connection tracking.
    pub const CTNETLINK: u8 = 1;
    /// IP sets.
    pub const IPSET: u8 = 6;
    /// nf_tables.
    pub const NFTABLES: u8 = 10;
    /// Matches and targets of x_tables in nf_tables.
    pub const NFT_COMPAT: u8 = 11;
}

const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const BATCH_GENERATION: u16 = 1;

/// A message's type, from its subsystem and its number there.
pub const fn kind(subsystem: u8, message: u8) -> u16 {
    ((subsystem as u16) << 8) | message as u16
}

/// Appends the header that follows netlink's.
pub fn header(writer: &mut Writer, family: u8, resource: u16) {
    let [high, low] = resource.to_be_bytes();
    writer.raw(&[family, 0, high, low]);
}

/// Appends the message that begins a batch of `subsystem`. If a generation is given, the kernel
/// refuses the batch with `ERESTART` when its objects are of another one.
pub fn batch_begin(writer: &mut Writer, subsystem: u8, sequence: u32, generation: Option<u32>) {
    writer.message(BATCH_BEGIN, 0, sequence, |w| {
        header(w, 0, subsystem.into());
        if let Some(generation) = generation {
            w.be32(BATCH_GENERATION, generation);
        }
    });
}

/// Sets the generation of the batch that begins at the start of `writer`, which was begun with a
/// generation. The kernel takes 0 for any generation.
pub fn set_batch_generation(writer: &mut Writer, generation: u32) {
    /// Headers of netlink, of nfnetlink and of the attribute.
    const VALUE: usize = 16 + HEADER + 4;
    writer.overwrite(VALUE, &generation.to_be_bytes());
}

/// Appends the message that ends a batch; without that message nothing is committed.
pub fn batch_end(writer: &mut Writer, subsystem: u8, sequence: u32) {
    writer.message(BATCH_END, 0, sequence, |w| header(w, 0, subsystem.into()));
}

/// Appends a request for all objects of a kind, which `fill` may narrow.
pub fn dump(
    writer: &mut Writer,
    kind: u16,
    sequence: u32,
    family: u8,
    fill: impl FnOnce(&mut Writer),
) {
    writer.message(kind, flags::DUMP, sequence, |w| {
        header(w, family, 0);
        fill(w);
    });
}
