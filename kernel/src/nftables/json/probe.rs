//! A check of a program `nft`.

use std::sync::Arc;

use switchyard_model::Protocol;

use super::{document::Document, run::Program};
use crate::nftables::{
    ruleset::{Element, Family, Field, Key, SetDef, Table, Transaction, Value},
    transport::TransportError,
};

/// Has the program check, without a commit, a map with concatenated data and an element. An nft
/// that is too old refuses the map, or makes a set of it and refuses the element.
pub(super) fn check(program: &Program) -> Result<(), TransportError> {
    let version = program.succeed(&["--version"], b"")?;
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    let document = Document(&transaction()).to_string();
    let output = program.run(&["-c", "-j", "-f", "-"], document.as_bytes())?;
    if output.success {
        return Ok(());
    }
    let reason = match output.stderr.contains("Operation not permitted") {
        true => format!("{version} may not change the ruleset: {}", output.stderr),
        false => format!(
            "{version} cannot take maps with typeof and concatenated data in JSON, as 1.1.3 can: {}",
            output.stderr.replace('\n', " ")
        ),
    };
    Err(TransportError::Unusable { program: program.name(), reason })
}

fn transaction() -> Transaction {
    let key = [Field::Ipv4Addr, Field::InetProto, Field::InetService, Field::Slot];
    let map = SetDef::map("switchyard-probe", key, [Field::Ipv4Addr, Field::InetService]).into();
    let table = Table::new(Family::Ip, "switchyard-probe");
    let mut transaction = Transaction::new();
    transaction.add_table(&table);
    transaction.add_set(&table, Arc::clone(&map));
    let address = [192, 0, 2, 1].into();
    let key = Key::new().address(address).protocol(Protocol::Tcp).port(80);
    let element = Element::value(key.slot(0), Value::new().address(address).port(80));
    transaction.add_elements(&table, &map, vec![element]);
    transaction
}
