//! Lookups in sets and maps.

use std::collections::BTreeMap;

use super::{
    Choice, Domain, PacketField,
    decode::Data,
    domain::low_bits,
    fingerprint,
    read::{Element, Set},
    values::big_endian,
    walk::{Drawn, Evaluation, Found, Step, Stop, Walk, Word},
};

/// The most slots of a draw; 1,638 endpoints have 16,381.
const MOST_SLOTS: u32 = 1 << 20;
/// The work to compare an element with packets.
const COMPARE: usize = 4;

/// The part of a key.
enum Part {
    Bytes(Vec<u8>),
    Field(PacketField, Domain),
    Drawn,
}

impl<'p> Evaluation<'p> {
    pub(super) fn look_up(
        &self,
        walk: &mut Walk<'p>,
        name: &'p str,
        from: usize,
        to: Option<usize>,
        negated: bool,
    ) -> Result<Step<'p>, Stop> {
        let set = self.program.sets.get(name).ok_or_else(|| Stop::Unknown("a set".into()))?;
        if set.volatile.is_some() {
            let found = self.recall(walk, name, set, from)?;
            return match (found, to) {
                (Some(_), _) if negated => Ok(Step::Break),
                (None, _) => Ok(if negated { Step::Next } else { Step::Break }),
                (Some(data), Some(to)) => {
                    Ok(Step::Draw(vec![(Found::Bytes(to, data), 1)], 1, Choice::Random))
                }
                (Some(_), None) => Ok(Step::Next),
            };
        }
        if set.has_catch_all {
            return Err(Stop::Unknown("an element for all keys".to_owned()));
        }
        let parts = self.key(walk, from, set.length)?;
        if parts.iter().any(|(_, part)| matches!(part, Part::Drawn)) {
            return self.draw(walk, set, &parts, to);
        }
        let found = self.find(set, &parts)?;
        if found.is_some_and(|element| element.data.is_none()) {
            return Err(Stop::Unknown("the data or an expression of an element".to_owned()));
        }
        if negated {
            return Ok(if found.is_some() { Step::Break } else { Step::Next });
        }
        let Some(found) = found else { return Ok(Step::Break) };
        match (&found.data, to) {
            (Some(Data::Verdict(verdict)), None) => Ok(Step::Verdict(verdict)),
            (Some(Data::Bytes(bytes)), Some(to)) => {
                Ok(Step::Draw(vec![(Found::Bytes(to, bytes), 1)], 1, Choice::Random))
            }
            (Some(_), None) => Ok(Step::Next),
            _ => Err(Stop::Unknown("a lookup of a verdict as data".to_owned())),
        }
    }

    /// The parts of a key, with their offsets in it.
    fn key(&self, walk: &Walk<'p>, from: usize, length: usize) -> Result<Vec<(usize, Part)>, Stop> {
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < length {
            let word = from + at / 4;
            match walk.words.get(word) {
                Some(Word::Bytes(bytes)) => parts.push((at, Part::Bytes(bytes.to_vec()))),
                Some(Word::Drawn) => parts.push((at, Part::Drawn)),
                Some(Word::Field { field, mask, shift: 0, length })
                    if *mask == low_bits(8 * field.length(self.program.family) as u32) =>
                {
                    let domain = self.packets.get(*field);
                    let part = match domain.single() {
                        Some(value) => {
                            let mut bytes = value.to_be_bytes()[16 - length..].to_vec();
                            bytes.resize(length.next_multiple_of(4), 0);
                            Part::Bytes(bytes)
                        }
                        None => Part::Field(*field, domain.clone()),
                    };
                    parts.push((at, part));
                    at += length.next_multiple_of(4) - 4;
                }
                _ => return Err(Stop::Unknown("the key of a lookup".to_owned())),
            }
            at += 4;
        }
        // The last field is not padded in keys of one.
        if let Some((at, Part::Bytes(bytes))) = parts.last_mut() {
            bytes.truncate(length - *at);
        }
        Ok(parts)
    }

    /// Finds the element with a key without a drawn number.
    fn find(&self, set: &'p Set, parts: &[(usize, Part)]) -> Result<Option<&'p Element>, Stop> {
        let symbolic = parts.iter().filter(|(_, part)| matches!(part, Part::Field(..))).count();
        if symbolic == 0 && !set.has_intervals() {
            return Ok(set.get(&joined(parts, &[])));
        }
        let candidates = self.candidates(set, parts)?;
        // A set decides for all of its elements at once.
        if let [(at, Part::Field(field, domain))] = parts
            && candidates.iter().all(|one| one.data == Some(Data::None))
        {
            let length = field.length(self.program.family);
            let all = Domain::new(candidates.iter().map(|one| interval(one, *at, length)));
            let (within, without) = domain.split(&all);
            return match (within.is_empty(), without.is_empty()) {
                (true, _) => Ok(None),
                (false, true) => Ok(candidates.first().copied()),
                (false, false) => Err(Stop::Split(*field, [within, without])),
            };
        }
        for element in candidates {
            if self.is_covered(element, parts)? {
                return Ok(Some(element));
            }
        }
        Ok(None)
    }

    fn candidates(&self, set: &'p Set, parts: &[(usize, Part)]) -> Result<Vec<&'p Element>, Stop> {
        let (mut words, mut bytes) = (0u64, Vec::new());
        for (at, part) in parts {
            if let Part::Bytes(known) = part {
                (0..known.len().div_ceil(4)).for_each(|word| words |= 1 << (at / 4 + word));
                bytes.extend_from_slice(known);
            }
        }
        let found = set.with(words, &bytes);
        self.budget.spend(COMPARE * found.len())?;
        Ok(found.into_iter().filter_map(|n| set.elements.get(n as usize)).collect())
    }

    /// Whether an element has the key of all packets; a drawn number is left out.
    fn is_covered(&self, element: &Element, parts: &[(usize, Part)]) -> Result<bool, Stop> {
        let mut split = None;
        for (at, part) in parts {
            match part {
                Part::Drawn => {}
                Part::Bytes(bytes) => {
                    let (first, last) = interval(element, *at, bytes.len());
                    let known = big_endian(bytes);
                    if !(first..=last).contains(&known) {
                        return Ok(false);
                    }
                }
                Part::Field(field, domain) => {
                    let length = field.length(self.program.family);
                    let own = Domain::new([interval(element, *at, length)]);
                    self.budget.spend(domain.len())?;
                    let within = domain.and(&own);
                    if within.is_empty() {
                        return Ok(false);
                    }
                    let without = domain.without(&own);
                    if !without.is_empty() {
                        split.get_or_insert(Stop::Split(*field, [within, without]));
                    }
                }
            }
        }
        split.map_or(Ok(true), Err)
    }

    /// Looks up a key with a drawn number.
    fn draw(
        &self,
        walk: &Walk<'p>,
        set: &'p Set,
        parts: &[(usize, Part)],
        to: Option<usize>,
    ) -> Result<Step<'p>, Stop> {
        let not_understood = || Stop::Unknown("a lookup by a drawn number".to_owned());
        let Drawn { how, modulus, offset } = walk.drawn.clone().ok_or_else(not_understood)?;
        if parts.iter().any(|(_, part)| matches!(part, Part::Field(..))) {
            for element in self.candidates(set, parts)? {
                if self.is_covered(element, parts)? {
                    return Err(not_understood());
                }
            }
            return Ok(Step::Break);
        }
        if set.has_intervals() || modulus == 0 {
            return Err(not_understood());
        }
        if modulus > MOST_SLOTS {
            let why = format!("a number that is drawn of {modulus} is not evaluated");
            return Err(Stop::Unknown(why));
        }
        self.budget.spend(modulus as usize)?;
        let mut values: BTreeMap<Found<'p>, u64> = BTreeMap::new();
        let mut slots = Vec::new();
        for number in 0..modulus {
            let key = joined(parts, &number.wrapping_add(offset).to_ne_bytes());
            let value = match (set.get(&key).map(|element| &element.data), to) {
                (Some(Some(Data::Bytes(bytes))), Some(to)) => Some(Found::Bytes(to, bytes)),
                (Some(Some(Data::Verdict(verdict))), None) => Some(Found::Verdict(verdict)),
                (Some(_), _) => return Err(not_understood()),
                (None, _) => None,
            };
            if let Some(value) = value {
                *values.entry(value).or_default() += 1;
            }
            if matches!(how, Choice::Hash { .. }) {
                slots.push(match value {
                    Some(Found::Bytes(_, bytes)) => Some(self.endpoint(bytes)),
                    Some(Found::Verdict(_)) => return Err(not_understood()),
                    None => None,
                });
            }
        }
        if values.is_empty() {
            return Ok(Step::Break);
        }
        let how = match how {
            Choice::Hash { of, seed, slots: number, .. } => {
                Choice::Hash { of, seed, slots: number, order: fingerprint(slots) }
            }
            how => how,
        };
        Ok(Step::Draw(values.into_iter().collect(), modulus.into(), how))
    }

    /// The address and the port of a map's data.
    pub(super) fn endpoint(&self, data: &[u8]) -> (u128, u16) {
        let length = PacketField::Destination.length(self.program.family);
        let (ip, port) = data.split_at(length.min(data.len()));
        (big_endian(ip), big_endian(&port[..port.len().min(2)]) as u16)
    }
}

/// The interval of a field in the key of an element.
fn interval(element: &Element, at: usize, length: usize) -> (u128, u128) {
    let of = |key: &[u8]| big_endian(key.get(at..at + length).unwrap_or_default());
    let first = of(&element.key);
    (first, element.end.as_deref().map_or(first, of))
}

fn joined(parts: &[(usize, Part)], drawn: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(40);
    for (_, part) in parts {
        match part {
            Part::Bytes(bytes) => key.extend_from_slice(bytes),
            _ => key.extend_from_slice(drawn),
        }
    }
    key
}
