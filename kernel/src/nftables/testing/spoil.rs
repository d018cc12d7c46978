//! Transactions that the kernel refuses.

use switchyard_model::IpFamily;

use crate::nftables::{ElementData, OperationKind, Rule, SetData, Statement, Transaction, Verdict};

/// Has what a transaction adds in a family lead to a chain that is not there: at the addresses of
/// the elements with a comment, or everything.
pub fn spoil(transaction: &mut Transaction, family: IpFamily, comment: Option<&str>) {
    let nowhere = || Verdict::Goto("nowhere".into());
    let mut addresses: Vec<Vec<u8>> = Vec::new();
    for operation in transaction.operations() {
        if let OperationKind::AddElements(_, elements) = &operation.kind
            && IpFamily::from(operation.table.family) == family
        {
            let own =
                elements.iter().filter(|e| comment.is_some() && e.comment.as_deref() == comment);
            // Before protocol and port.
            addresses.extend(own.map(|e| e.key.as_slice()[..e.key.as_slice().len() - 8].to_vec()));
        }
    }
    let mut is_spoilt = false;
    for operation in transaction.operations_mut() {
        match (&mut operation.kind, comment) {
            _ if IpFamily::from(operation.table.family) != family => {}
            (OperationKind::AddElements(set, elements), Some(_)) if set.is_map() => {
                for element in elements {
                    if addresses.iter().any(|ip| element.key.as_slice().starts_with(ip)) {
                        element.data = ElementData::Verdict(nowhere());
                    }
                }
            }
            (OperationKind::AddRule(_, rule), None) if !is_spoilt => {
                *rule = Rule::new([Statement::Verdict(nowhere())]);
                is_spoilt = true;
            }
            (OperationKind::AddElements(set, elements), None) if set.data == SetData::Verdict => {
                for element in elements {
                    element.data = ElementData::Verdict(nowhere());
                }
            }
            _ => {}
        }
    }
}
