//! Transactions as batches of netlink messages.

use std::ops::Range;

use crate::{
    netlink::{
        Writer, flags,
        nfnetlink::{self, subsystem::NFTABLES},
    },
    nftables::{
        abi::{LIST_ELEMENT, chain, data, element, message, rule, set, table},
        ruleset::{
            BaseChain, Element, ElementData, Field, Key, OperationKind, Rule, SetData, SetDef,
            Table, Transaction, interval,
        },
        text,
    },
};

use super::{
    expression,
    userdata::{self, UserData, abi as udata},
};

/// The most elements in one message. The list is one attribute of at most 64 KiB, and an element
/// with the longest key, chain name and comment has some 500 bytes.
pub(super) const ELEMENTS_PER_MESSAGE: usize = 1000;
/// The length in bytes at which a list of elements ends, so that one more element cannot make it
/// too long.
const ELEMENTS_BYTES: usize = 60_000;

/// The typical length of an element without a comment, in bytes.
const ELEMENT_BYTES: usize = 64;

/// The number of bits per field in the type of a key: the type is nft's numbers of the fields'
/// types, packed.
const TYPE_BITS: u32 = 6;

/// The generation of a batch that may be committed to any.
pub(super) const ANY_GENERATION: u32 = 0;

/// A transaction that is ready to be sent.
pub(super) struct Batch {
    /// All messages.
    pub writer: Writer,
    /// The sequence number of the first message, which begins the batch.
    pub first_sequence: u32,
    /// The sequence number of the message that the kernel acknowledges.
    pub acked: u32,
    /// For each message after the first: the index of its operation, and where its bytes are.
    pub sources: Vec<(usize, Range<usize>)>,
}

/// Writes a transaction as a batch for [`ANY_GENERATION`], with as many elements in a message. The
/// sequence numbers of its messages start at `sequence`.
pub(super) fn encode(
    transaction: &Transaction,
    sequence: u32,
    writer: Writer,
    elements_per_message: usize,
) -> Batch {
    let mut encoder = Encoder {
        elements_per_message,
        batch: Batch { writer, first_sequence: sequence, acked: sequence, sources: Vec::new() },
        next_set: 1,
        operation: 0,
    };
    let w = &mut encoder.batch.writer;
    w.clear();
    let elements: usize =
        transaction.operations().iter().map(|operation| operation.elements()).sum();
    w.reserve(elements * ELEMENT_BYTES);
    nfnetlink::batch_begin(w, NFTABLES, sequence, Some(ANY_GENERATION));
    for (index, operation) in transaction.operations().iter().enumerate() {
        encoder.operation = index;
        encoder.operation(&operation.table, &operation.kind);
    }
    let mut batch = encoder.batch;
    // Older kernels do not acknowledge the end of a batch: ask for that of the last message before.
    if let Some((_, range)) = batch.sources.last() {
        batch.writer.add_flags(range.start, flags::ACK);
        batch.acked = sequence.wrapping_add(batch.sources.len() as u32);
    }
    let end = batch.acked.wrapping_add(1);
    nfnetlink::batch_end(&mut batch.writer, NFTABLES, end);
    batch
}

impl Batch {
    /// Makes the kernel refuse the batch unless its ruleset is of this generation.
    pub(super) fn expect(&mut self, generation: u32) {
        nfnetlink::set_batch_generation(&mut self.writer, generation);
    }
}

/// The most messages that a transaction can become, for which sequence numbers are reserved.
pub(super) fn message_bound(transaction: &Transaction) -> u32 {
    let messages = transaction.operations().iter().map(|operation| operation.elements().max(1));
    u32::try_from(messages.sum::<usize>() + 2).unwrap_or(u32::MAX)
}

struct Encoder {
    elements_per_message: usize,
    batch: Batch,
    next_set: u32,
    operation: usize,
}

impl Encoder {
    fn operation(&mut self, table: &Table, kind: &OperationKind) {
        let name = table.name.as_str();
        match kind {
            OperationKind::AddTable { comment } => {
                self.message(table, message::NEW_TABLE, flags::CREATE, |w| {
                    w.string(table::NAME, name);
                    if let Some(comment) = comment {
                        let mut user_data = UserData::new();
                        user_data.comment(udata::COMMENT, &text::comment_text(comment));
                        w.attribute(table::USERDATA, user_data.as_slice());
                    }
                });
            }
            OperationKind::WakeTable => {
                self.message(table, message::NEW_TABLE, flags::CREATE, |w| {
                    w.string(table::NAME, name);
                    w.be32(table::FLAGS, 0);
                });
            }
            OperationKind::DeleteTable => {
                self.message(table, message::DEL_TABLE, 0, |w| w.string(table::NAME, name));
            }
            OperationKind::AddBaseChain(base) => {
                self.message(table, message::NEW_CHAIN, flags::CREATE, |w| {
                    base_chain(w, name, base);
                });
            }
            OperationKind::AddChain(chain) => {
                self.message(table, message::NEW_CHAIN, flags::CREATE, |w| {
                    w.string(chain::TABLE, name);
                    w.string(chain::NAME, chain.as_str());
                });
            }
            OperationKind::FlushChain(chain) => {
                self.message(table, message::DEL_RULE, 0, |w| {
                    w.string(rule::TABLE, name);
                    w.string(rule::CHAIN, chain.as_str());
                });
            }
            OperationKind::DeleteChain(chain) => {
                self.message(table, message::DEL_CHAIN, 0, |w| {
                    w.string(chain::TABLE, name);
                    w.string(chain::NAME, chain.as_str());
                });
            }
            OperationKind::AddSet(definition) => {
                let id = self.set_id();
                self.message(table, message::NEW_SET, flags::CREATE, |w| {
                    named_set(w, name, definition, id);
                });
            }
            OperationKind::DeleteSet(set) => {
                self.message(table, message::DEL_SET, 0, |w| {
                    w.string(set::TABLE, name);
                    w.string(set::NAME, set.as_str());
                });
            }
            OperationKind::AddRule(chain, rule) => self.rule(table, chain.as_str(), rule),
            OperationKind::AddElements(definition, elements) => {
                self.elements(table, message::NEW_ELEMENT, definition, elements, |w, element| {
                    match definition.interval {
                        true => write_interval(w, definition, &element.key),
                        false => w.nest(LIST_ELEMENT, |w| write_element(w, definition, element)),
                    }
                });
            }
            OperationKind::RestoreElements(definition, elements) => {
                self.elements(table, message::NEW_ELEMENT, definition, elements, |w, restored| {
                    w.nest(LIST_ELEMENT, |w| {
                        write_element(w, definition, &restored.element);
                        if let Some(expires) = restored.expires {
                            let milliseconds =
                                u64::try_from(expires.as_millis()).unwrap_or(u64::MAX);
                            w.be64(element::EXPIRATION, milliseconds);
                        }
                    });
                });
            }
            OperationKind::DeleteElements(definition, keys) => {
                self.elements(table, message::DEL_ELEMENT, definition, keys, |w, key| {
                    match definition.interval {
                        true => write_interval(w, definition, key),
                        false => w.nest(LIST_ELEMENT, |w| write_key(w, definition, key)),
                    }
                });
            }
        }
    }

    fn message(&mut self, table: &Table, kind: u8, flags: u16, fill: impl FnOnce(&mut Writer)) {
        let Batch { writer, first_sequence, sources, .. } = &mut self.batch;
        let start = writer.len();
        let sequence = first_sequence.wrapping_add(sources.len() as u32 + 1);
        writer.message(nfnetlink::kind(NFTABLES, kind), flags, sequence, |w| {
            nfnetlink::header(w, table.family.number(), 0);
            fill(w);
        });
        sources.push((self.operation, start..writer.len()));
    }

    fn set_id(&mut self) -> u32 {
        let id = self.next_set;
        self.next_set += 1;
        id
    }

    fn rule(&mut self, table: &Table, chain: &str, rule: &Rule) {
        self.message(table, message::NEW_RULE, flags::CREATE | flags::APPEND, |w| {
            w.string(rule::TABLE, table.name.as_str());
            w.string(rule::CHAIN, chain);
            w.nest(rule::EXPRESSIONS, |w| {
                for statement in &rule.statements {
                    expression::write(w, table.family, statement);
                }
            });
            let mut user_data = UserData::new();
            if let Some(comment) = &rule.comment {
                user_data.comment(udata::COMMENT, &text::comment_text(comment));
            }
            user_data.item(udata::RULE_FINGERPRINT, &rule.fingerprint(table.family).to_be_bytes());
            w.attribute(rule::USERDATA, user_data.as_slice());
        });
    }

    /// Writes elements, as many in a message as fit. `write` appends them to the list.
    fn elements<T>(
        &mut self,
        table: &Table,
        kind: u8,
        set: &SetDef,
        mut items: &[T],
        mut write: impl FnMut(&mut Writer, &T),
    ) {
        let most = self.elements_per_message;
        while !items.is_empty() {
            let mut taken = 0;
            let flags = if kind == message::NEW_ELEMENT { flags::CREATE } else { 0 };
            self.message(table, kind, flags, |w| {
                w.string(element::TABLE, table.name.as_str());
                w.string(element::SET, set.name.as_str());
                let start = w.len();
                w.nest(element::ELEMENTS, |w| {
                    for item in items.iter().take(most) {
                        if w.len() - start > ELEMENTS_BYTES {
                            break;
                        }
                        write(w, item);
                        taken += 1;
                    }
                });
            });
            items = &items[taken..];
        }
    }
}

pub(in crate::nftables) fn base_chain(w: &mut Writer, table: &str, base: &BaseChain) {
    w.string(chain::TABLE, table);
    w.string(chain::NAME, base.name.as_str());
    w.string(chain::TYPE, base.kind.as_str());
    w.be32(chain::POLICY, chain::POLICY_ACCEPT);
    w.nest(chain::HOOK, |w| {
        w.be32(chain::HOOK_NUMBER, base.hook as u32);
        w.be32(chain::HOOK_PRIORITY, base.priority.cast_unsigned());
    });
}

fn named_set(w: &mut Writer, table: &str, definition: &SetDef, id: u32) {
    w.string(set::TABLE, table);
    w.string(set::NAME, definition.name.as_str());
    w.be32(set::FLAGS, set_flags(definition));
    w.be32(set::KEY_TYPE, packed_type(&definition.key));
    w.be32(set::KEY_LEN, definition.key_len() as u32);
    match &definition.data {
        SetData::None => {}
        SetData::Verdict => {
            w.be32(set::DATA_TYPE, set::DATA_VERDICT);
            w.be32(set::DATA_LEN, 0);
        }
        SetData::Value(fields) => {
            w.be32(set::DATA_TYPE, packed_type(fields));
            w.be32(set::DATA_LEN, definition.value_len() as u32);
        }
    }
    if let Some(timeout) = definition.timeout {
        w.be64(set::TIMEOUT, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    }
    w.be32(set::ID, id);
    if let Some(size) = definition.size {
        w.nest(set::DESC, |w| w.be32(set::DESC_SIZE, size));
    }
    w.attribute(set::USERDATA, userdata::for_set(definition).as_slice());
}

pub(super) fn set_flags(definition: &SetDef) -> u32 {
    let map = if definition.is_map() { set::FLAG_MAP } else { 0 };
    let dynamic = match definition.timeout {
        Some(_) => set::FLAG_DYNAMIC | set::FLAG_TIMEOUT,
        None => 0,
    };
    let interval = if definition.interval { set::FLAG_INTERVAL } else { 0 };
    map | dynamic | interval
}

/// nft's number of a type (`enum datatypes`).
pub(super) fn type_number(field: Field) -> u32 {
    match field {
        Field::Slot => 4,
        Field::Ipv4Addr => 7,
        Field::Ipv6Addr => 8,
        Field::InetProto => 12,
        Field::InetService | Field::Port(_) => 13,
    }
}

pub(in crate::nftables) fn packed_type(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |packed, field| (packed << TYPE_BITS) | type_number(*field))
}

/// The fields of a packed type; `None` if one of them is not a [`Field`].
pub(super) fn unpacked_type(mut packed: u32) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while packed != 0 {
        let number = packed & ((1 << TYPE_BITS) - 1);
        fields.push(Field::TYPES.into_iter().find(|field| type_number(*field) == number)?);
        packed >>= TYPE_BITS;
    }
    fields.reverse();
    (!fields.is_empty()).then_some(fields)
}

fn write_key(w: &mut Writer, definition: &SetDef, key: &Key) {
    w.nest(element::KEY, |w| w.attribute(data::VALUE, cut(key.as_slice(), definition.key_len())));
}

/// Writes an interval as the kernel has it: an element where it begins, and one behind its end. No
/// address comes after the last.
fn write_interval(w: &mut Writer, definition: &SetDef, key: &Key) {
    let Some((first, last)) = key.as_interval() else { return };
    let behind = interval::successor(last);
    w.nest(LIST_ELEMENT, |w| {
        write_key(w, definition, &Key::new().address(first));
        if behind.is_none() {
            w.attribute(element::USERDATA, userdata::for_open_interval().as_slice());
        }
    });
    if let Some(behind) = behind {
        w.nest(LIST_ELEMENT, |w| {
            w.be32(element::FLAGS, element::FLAG_INTERVAL_END);
            write_key(w, definition, &Key::new().address(behind));
        });
    }
}

fn write_element(w: &mut Writer, definition: &SetDef, element: &Element) {
    write_key(w, definition, &element.key);
    match &element.data {
        ElementData::None => {}
        ElementData::Verdict(verdict) => {
            w.nest(element::DATA, |w| expression::write_verdict(w, verdict));
        }
        ElementData::Value(value) => w.nest(element::DATA, |w| {
            w.attribute(data::VALUE, cut(value.as_slice(), definition.value_len()));
        }),
    }
    if let Some(comment) = &element.comment {
        let mut user_data = UserData::new();
        user_data.comment(udata::COMMENT, &text::comment_text(comment));
        w.attribute(element::USERDATA, user_data.as_slice());
    }
}

/// A key of one field has no padding in the kernel.
fn cut(bytes: &[u8], length: usize) -> &[u8] {
    &bytes[..bytes.len().min(length)]
}
