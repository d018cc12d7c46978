//! Clients that are remembered: elements that packets add to sets, by which later packets of the
//! same client are led.

use std::collections::BTreeSet;

use super::{
    Budget, Domain, End, Fate, PacketField, Packets, Program,
    domain::low_bits,
    read::Set,
    walk::{Evaluation, Stop, Walk, Word},
};

/// A client that is remembered, by its source address, as an element of a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Memory {
    /// The name of the set.
    pub set: Box<str>,
    /// The address, as a number, and the port that the element has for the client; `None` in a set
    /// without data.
    pub endpoint: Option<(u128, u16)>,
    /// The time that the element stays, in milliseconds.
    pub milliseconds: u64,
    /// Whether the time begins anew if the set has the client already.
    pub renews: bool,
}

impl Program {
    /// Returns the fates as [`Program::fates`] does, of packets whose source some sets have with
    /// these memories.
    pub fn fates_of(
        &self,
        packets: &Packets,
        local: &Domain,
        memories: &[&Memory],
        budget: &Budget,
    ) -> Vec<(Packets, Fate)> {
        let data = |memory: &Memory| {
            let mut data = Vec::new();
            if let Some((ip, port)) = memory.endpoint {
                let length = PacketField::Destination.length(self.family);
                data.extend_from_slice(&ip.to_be_bytes()[16 - length..]);
                data.extend_from_slice(&port.to_be_bytes());
                data.resize(self.sets.get(&memory.set).map_or(0, |set| set.data_length), 0);
            }
            data
        };
        let memories: Vec<_> = memories.iter().map(|memory| (&*memory.set, data(memory))).collect();
        self.parts(packets, local, &memories, budget)
    }

    /// Whether there is a set of this name.
    pub fn has_set(&self, set: &str) -> bool {
        self.sets.contains_key(set)
    }

    /// Whether a set has an endpoint for each client.
    pub fn has_endpoints(&self, set: &str) -> bool {
        self.sets.get(set).is_some_and(|set| set.data_length > 0)
    }
}

impl<'p> Evaluation<'p> {
    /// Looks a client up; returns the data of the element.
    pub(super) fn recall(
        &self,
        walk: &mut Walk<'p>,
        name: &'p str,
        set: &Set,
        from: usize,
    ) -> Result<Option<&'p [u8]>, Stop> {
        if let Some((_, data)) = self.memories.iter().find(|(of, _)| *of == name) {
            return match self.is_client(walk, set, from) {
                true => Ok(Some(data)),
                false => Err(Stop::Unknown("the key of a lookup of clients".to_owned())),
            };
        }
        walk.asked.insert(name);
        Ok(None)
    }

    /// The memory that an expression leaves.
    pub(super) fn memory(
        &self,
        walk: &Walk<'p>,
        name: &str,
        key: usize,
        data: Option<usize>,
        milliseconds: Option<u64>,
        renews: bool,
    ) -> Result<Memory, Stop> {
        let set = self.program.sets.get(name);
        let (Some(set), Some(timeout)) = (set, set.and_then(|set| set.volatile)) else {
            return Err(Stop::Unknown("an element of a set that packets do not change".to_owned()));
        };
        if !self.is_client(walk, set, key) {
            return Err(Stop::Unknown("the key of a client".to_owned()));
        }
        let endpoint = match data {
            Some(from) => Some(self.endpoint(&walk.read(from, set.data_length)?)),
            None => None,
        };
        let milliseconds = milliseconds.unwrap_or(timeout.as_millis() as u64);
        Ok(Memory { set: name.into(), endpoint, milliseconds, renews })
    }

    /// Whether the key of a set is the source address of the packet.
    fn is_client(&self, walk: &Walk<'p>, set: &Set, from: usize) -> bool {
        let all = PacketField::Source.length(self.program.family);
        matches!(
            walk.words[from],
            Word::Field { field: PacketField::Source, mask, shift: 0, length }
                if length == all && set.length == all && mask == low_bits(8 * all as u32)
        )
    }
}

/// Adds the memories of one way to its end.
pub(super) fn remember(fate: &mut Fate, end: &End, found: BTreeSet<Memory>) -> Result<(), Stop> {
    let known = fate.remembered.get(end);
    if fate.ends.contains_key(end) && known.map_or(!found.is_empty(), |known| *known != found) {
        return Err(Stop::Unknown("clients of an endpoint are remembered differently".to_owned()));
    }
    if !found.is_empty() {
        fate.remembered.insert(end.clone(), found);
    }
    Ok(())
}
