//! Errors of the kernel in words that name the operation, the object and the element.

use crate::{
    netlink::{Attributes, KernelError, Messages, nfnetlink},
    nftables::{
        abi::{data, element},
        ruleset::{Key, OperationKind, Transaction},
        text,
        transport::{Refusal, TransportError},
    },
};

use super::batch::Batch;

/// The length of the headers of netlink and nfnetlink, in bytes.
const HEADERS: usize = 16 + nfnetlink::HEADER;

/// Returns the error that the kernel's errors of a batch amount to.
pub(super) fn decode(
    transaction: &Transaction,
    batch: &Batch,
    errors: Vec<KernelError>,
) -> TransportError {
    if errors.iter().any(|error| error.errno == libc::ERESTART) {
        return TransportError::Conflict;
    }
    let mut refusals = errors.into_iter().map(|error| refusal(transaction, batch, error));
    match refusals.next() {
        Some(first) => TransportError::Refused(first, refusals.collect()),
        None => crate::netlink::Error::NoAnswer.into(),
    }
}

fn refusal(transaction: &Transaction, batch: &Batch, error: KernelError) -> Refusal {
    let reason = error.to_string();
    let errno = Some(error.errno);
    // The first message begins the batch, so that its error is about the commit as a whole.
    let message = (error.sequence.wrapping_sub(batch.first_sequence) as usize).checked_sub(1);
    let Some((operation, range)) = message.and_then(|index| batch.sources.get(index)) else {
        let subject = "commit the transaction".into();
        return Refusal { operation: usize::MAX, element: None, subject, errno, reason };
    };
    let kind = &transaction.operations()[*operation];
    let bytes = batch.writer.as_slice().get(range.clone()).unwrap_or_default();
    let element = element_at(bytes, error.offset);
    let subject = match element {
        Some(key) => match &kind.kind {
            OperationKind::AddElements(set, _)
            | OperationKind::RestoreElements(set, _)
            | OperationKind::DeleteElements(set, _) => {
                format!("{}: {}", kind.subject(), text::key_text(set, key))
            }
            _ => kind.subject(),
        },
        None => kind.subject(),
    };
    let element = element.and_then(Key::from_bytes).map(Box::new);
    Refusal { operation: *operation, element, subject, errno, reason }
}

/// The key of the element that the kernel refused: the element at the offset in the kernel's error,
/// which kernels report since 5.19, or the only element of the message.
fn element_at(bytes: &[u8], offset: Option<u32>) -> Option<&[u8]> {
    let message = Messages::new(bytes).next()?;
    let list = message.attributes(nfnetlink::HEADER).find_kind(element::ELEMENTS)?;
    let position = |part: &[u8]| (part.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
    let key = |attributes: Attributes<'_>| {
        let key = attributes.find_kind(element::KEY)?.nested().find_kind(data::VALUE)?;
        let start = position(key.payload);
        Some(start..start + key.payload.len())
    };
    let mut elements = list.nested();
    let range = match offset {
        Some(offset) if offset as usize > HEADERS => {
            let offset = offset as usize;
            elements.find_map(|attribute| {
                let start = position(attribute.payload);
                let inside = start - 4 <= offset && offset < start + attribute.payload.len();
                inside.then(|| key(attribute.nested())).flatten()
            })
        }
        _ => match (elements.next(), elements.next()) {
            (Some(only), None) => key(only.nested()),
            _ => None,
        },
    }?;
    bytes.get(range)
}
