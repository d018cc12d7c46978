//! The operation that the kernel refuses of a transaction, which the messages of `nft` name by its
//! line if the transaction was text.

use std::fmt::Write;

use super::run::Program;
use crate::nftables::{
    ruleset::{Key, Operation, OperationKind, Transaction},
    transport::{NO_SUCH_OBJECT, Refusal, TransportError},
};

/// A line of a transaction: the index of its operation, and the key if the line is one element.
type Source = (usize, Option<Key>);

/// Has the program check the transaction line by line, without a commit. Returns the refusals;
/// `None` if the program names none.
pub(super) fn find(program: &Program, transaction: &Transaction) -> Option<TransportError> {
    let (mut text, mut sources) = (String::new(), Vec::new());
    for (index, operation) in transaction.operations().iter().enumerate() {
        for (line, key) in lines(operation) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{line}");
            sources.push((index, key));
            if key.is_some() {
                // The table is there. nft makes one message of lines that add elements to the same
                // set, of which the kernel reports one element alone.
                let kind = OperationKind::AddTable { comment: None };
                let _ = writeln!(text, "{}", Operation { table: operation.table.clone(), kind });
                sources.push((index, None));
            }
        }
    }
    let checked = program.run(&["-c", "-f", "-"], text.as_bytes()).ok()?;
    let mut refusals =
        checked.stderr.lines().filter_map(|line| refusal(transaction, &sources, line));
    let first = refusals.next().filter(|_| !checked.success)?;
    Some(TransportError::Refused(first, refusals.collect()))
}

/// The lines of an operation, each with one element at most.
fn lines(operation: &Operation) -> Vec<(Operation, Option<Key>)> {
    let table = &operation.table;
    let line = |kind| Operation { table: table.clone(), kind };
    match &operation.kind {
        OperationKind::AddElements(set, elements) => elements
            .iter()
            .map(|element| {
                let kind = OperationKind::AddElements(set.clone(), vec![element.clone()]);
                (line(kind), Some(element.key))
            })
            .collect(),
        OperationKind::RestoreElements(set, elements) => elements
            .iter()
            .map(|restored| {
                let kind = OperationKind::RestoreElements(set.clone(), vec![restored.clone()]);
                (line(kind), Some(restored.element.key))
            })
            .collect(),
        OperationKind::DeleteElements(set, keys) => keys
            .iter()
            .map(|&key| (line(OperationKind::DeleteElements(set.clone(), vec![key])), Some(key)))
            .collect(),
        _ => vec![(operation.clone(), None)],
    }
}

/// Reads a message such as `/dev/stdin:3:1-40: Error: Could not process rule: File exists`.
fn refusal(transaction: &Transaction, sources: &[Source], message: &str) -> Option<Refusal> {
    let (place, reason) = message.split_once(": Error: ")?;
    let (_, place) = place.split_once(':')?;
    let line: usize = place.split_once(':')?.0.parse().ok()?;
    let (operation, element) = *sources.get(line.checked_sub(1)?)?;
    let element = element.map(Box::new);
    let subject = transaction.operations().get(operation)?.subject();
    let errno = reason.contains(NO_SUCH_OBJECT).then_some(libc::ENOENT);
    Some(Refusal { operation, element, subject, errno, reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::ruleset::{Family, Table};

    #[test]
    fn messages_are_read() {
        let mut transaction = Transaction::new();
        let table = Table::new(Family::Ip, "t");
        transaction.add_table(&table);
        transaction.add_chain(&table, "c");
        let read = |message| refusal(&transaction, &[(0, None), (1, None)], message);
        let message = "/dev/stdin:2:1-16: Error: Could not process rule: File exists";
        let found = read(message).unwrap();
        assert_eq!((found.operation, found.subject.as_str()), (1, "add chain ip t c"));
        assert_eq!(found.reason, "Could not process rule: File exists");
        for other in ["add chain ip t c", "/dev/stdin:9:1-2: Error: x", "Error: x", ""] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
