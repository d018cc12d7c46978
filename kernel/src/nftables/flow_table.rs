//! A flowtable, by which the kernel forwards packets of translated connections past all rules.

use super::{
    abi::{LIST_ELEMENT, expression as e, flowtable, message},
    netlink::expression::{FIRST_REGISTER, compare_by, ct_bits, ct_load, expression},
    owned::Batch,
    ruleset::Hook,
};
use crate::netlink::{Error, KernelError, Socket, Writer, flags};

/// The name of the table, in the family `inet`.
pub const FLOW_TABLE: &str = "switchyard-flowtable";
const FLOWTABLE: &str = "flows";
const CHAIN: &str = "forward";
/// The priority of the chain: behind what others let pass or drop.
const LAST: i32 = 1000;
/// A connection with no more packets than this is not worth an entry (kindnet's number).
const PACKETS: u64 = 20;

/// A table with a flowtable, and the rule that puts connections there: those that have a translated
/// destination and an answer, and more than 20 packets. The kernel removes the table when this
/// value is dropped, or when the process ends in whatever way; other programs cannot change it. The
/// connections then go on by the rules.
#[derive(Debug)]
pub struct FlowTable {
    owner: Socket,
}

impl FlowTable {
    /// Adds the table to the network namespace of the calling thread, without devices. The kernel
    /// counts the packets of new connections from then on (`nf_conntrack_acct`).
    ///
    /// # Errors
    /// If the kernel refuses: it has no flowtables, another process has the table, or it is older
    /// than 5.12, which has no tables that belong to a socket.
    pub fn add() -> Result<Self, Error> {
        let mut owner = Socket::open(libc::NETLINK_NETFILTER)?;
        let mut batch = Batch::new(&mut owner, libc::NFPROTO_INET, FLOW_TABLE, 4);
        batch.add_table();
        batch.add(message::NEW_FLOWTABLE, flags::EXCLUSIVE, |w, table| {
            w.string(flowtable::TABLE, table);
            w.string(flowtable::NAME, FLOWTABLE);
            w.be32(flowtable::FLAGS, flowtable::FLAG_COUNTER);
            hook(w, None);
        });
        batch.add_chain(CHAIN, Hook::Forward, LAST);
        batch.add_rule(CHAIN, offload);
        batch.commit_all(&mut owner)?;
        Ok(Self { owner })
    }

    /// Adds the devices of these names: packets that come in there are looked up. A device that has
    /// been added is left alone; the kernel forgets one that is deleted. Returns the indices in
    /// `devices` of those that the kernel refuses, as there is none of the name.
    ///
    /// # Errors
    /// If the kernel cannot be reached.
    pub fn add_devices(&mut self, devices: &[&str]) -> Result<Vec<(usize, KernelError)>, Error> {
        let mut refused: Vec<(usize, KernelError)> = Vec::new();
        loop {
            let is_refused = |index: usize| refused.iter().any(|(one, _)| *one == index);
            let mut sent = Vec::new();
            let mut batch =
                Batch::new(&mut self.owner, libc::NFPROTO_INET, FLOW_TABLE, devices.len() as u32);
            for (index, device) in devices.iter().enumerate().filter(|(i, _)| !is_refused(*i)) {
                let number = batch.add(message::NEW_FLOWTABLE, 0, |w, table| {
                    w.string(flowtable::TABLE, table);
                    w.string(flowtable::NAME, FLOWTABLE);
                    hook(w, Some(device));
                });
                sent.push((number, index));
            }
            if sent.is_empty() {
                return Ok(refused);
            }
            // A refused device makes the kernel take none.
            let errors = batch.commit(&mut self.owner)?;
            if errors.is_empty() {
                return Ok(refused);
            }
            for (number, error) in errors {
                match sent.iter().find(|(one, _)| *one == number) {
                    Some((_, index)) => refused.push((*index, error)),
                    None => return Err(Error::Kernel(error)),
                }
            }
        }
    }
}

/// The hook of the flowtable at a device.
fn hook(w: &mut Writer, device: Option<&str>) {
    w.nest(flowtable::HOOK, |w| {
        w.be32(flowtable::HOOK_NUMBER, flowtable::INGRESS);
        w.be32(flowtable::HOOK_PRIORITY, 0);
        if let Some(device) = device {
            w.nest(flowtable::HOOK_DEVICES, |w| w.string(LIST_ELEMENT, device));
        }
    });
}

/// The rule `ct state established ct status dnat ct packets > 20 flow add @flows`.
fn offload(w: &mut Writer) {
    ct_bits(w, e::CT_STATE, e::CT_STATE_ESTABLISHED);
    ct_bits(w, e::CT_STATUS, e::CT_STATUS_DNAT);
    ct_load(w, e::CT_PACKETS);
    expression(w, "byteorder", |w| {
        w.be32(e::BYTEORDER_SREG, FIRST_REGISTER);
        w.be32(e::BYTEORDER_DREG, FIRST_REGISTER);
        w.be32(e::BYTEORDER_OP, e::BYTEORDER_HTON);
        w.be32(e::BYTEORDER_LEN, 8);
        w.be32(e::BYTEORDER_SIZE, 8);
    });
    compare_by(w, e::CMP_GT, &PACKETS.to_be_bytes());
    expression(w, "flow_offload", |w| w.string(e::FLOW_OFFLOAD_TABLE, FLOWTABLE));
}
