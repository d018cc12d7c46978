//! A probe of the kernel: can it do what the backend needs, and what some Services need?
//!
//! One transaction asks for a chain and a rule for each kernel module that the backend uses, and
//! ends with an operation that the kernel must refuse, so that nothing is committed. If that is the
//! only refusal, the rest would have worked. The table is none that Services are programmed in,
//! which another program may own or have made dormant: that costs its family, and not the mode.

use switchyard_core::{
    error::ErrorChain,
    model::{PerFamily, Protocol},
};
use switchyard_kernel::{
    KernelVersion,
    nftables::{
        BaseChain, ChainKind, ChainName, Family, Field, Hook, Refusal, Rule, Selector, SetDef,
        Side, SlotChoice, Statement, Table, Transaction, Transport, TransportError, TransportKind,
    },
};

use crate::layout::slots::{Method, table_size};

/// The oldest kernel whose nftables do what the backend needs.
const OLDEST_KERNEL: KernelVersion = KernelVersion(5, 13);
/// The table that the probe asks for.
const TABLE: &str = "switchyard-probe";
/// The chains that the probe asks for.
const NAT_IN: &str = "switchyard-probe-in";
const NAT_OUT: &str = "switchyard-probe-out";
const FILTER: &str = "switchyard-probe-filter";
/// The maps that the probe asks for.
const BY_PORT: &str = "switchyard-probe-by-port";
const BY_SLOT: &str = "switchyard-probe-by-slot";
/// The chain whose deletion the kernel must refuse.
const NO_SUCH_CHAIN: &str = "switchyard-no-such-chain";

/// Why the backend cannot run on this node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The kernel is too old.
    #[error("the kernel is {0}; {OLDEST_KERNEL} or newer is needed")]
    OldKernel(KernelVersion),
    /// The process may not change tables.
    #[error("needs CAP_NET_ADMIN")]
    Privilege,
    /// The transport cannot be opened, or the probe did not reach the kernel.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The kernel refused something that the backend needs.
    #[error(
        "cannot {}: {} (needed of the kernel: {})",
        .refusal.subject,
        .refusal.reason,
        .modules.join(", ")
    )]
    Refused {
        /// The first refusal.
        refusal: Refusal,
        /// The kernel modules that all refused operations need.
        modules: Vec<&'static str>,
    },
    /// The kernel took a transaction that it must refuse.
    #[error("nftables did not refuse what cannot be")]
    NothingRefused,
}

/// Probes whether the kernel can do what the backend needs in these families, and whether the
/// transport can be opened. Works in the network namespace of the calling thread, blocks for some
/// milliseconds, and changes nothing, except that the kernel may load modules.
///
/// With `any_kernel`, the version of the kernel is not checked: distributions backport nftables.
///
/// # Errors
///
/// [`ProbeError`] names what is missing.
pub fn probe(
    transport: TransportKind,
    families: &PerFamily<bool>,
    any_kernel: bool,
) -> Result<(), ProbeError> {
    if !any_kernel {
        check_version(KernelVersion::running())?;
    }
    // The needs of the transport itself. The dry run always takes netlink: the program nft does not
    // report which operation was refused.
    transport.open()?;
    let mut netlink = TransportKind::Netlink.open()?;
    dry_run(netlink.as_mut(), &wanted(&chosen(families)))
}

/// Probes, in the same way, whether the kernel can select slots by a hash, which some algorithms
/// need.
pub(crate) fn has_hashes(families: &PerFamily<bool>) -> bool {
    let probe = || {
        let mut netlink = TransportKind::Netlink.open()?;
        dry_run(netlink.as_mut(), &wanted_for_hashes(&chosen(families)))
    };
    probe().map_or_else(|error| has_hashes_after(&error), |()| true)
}

/// Whether a kernel is taken for one with hashes after a probe that failed. A failure that may pass
/// is no answer: nodes that should agree would not, for the life of this process.
fn has_hashes_after(error: &ProbeError) -> bool {
    let is_missing =
        matches!(error, ProbeError::Refused { refusal, .. } if !refusal.lacks_memory());
    let err = ErrorChain(error);
    match is_missing {
        true => tracing::info!(%err, "Hash algorithms not supported by the kernel"),
        false => tracing::warn!(%err, "Hash algorithms may not be supported by the kernel"),
    }
    !is_missing
}

fn chosen(families: &PerFamily<bool>) -> Vec<Family> {
    Family::ALL.into_iter().filter(|&family| *families.get(family.into())).collect()
}

/// Checks the kernel's version. An unknown one passes.
fn check_version(version: Option<KernelVersion>) -> Result<(), ProbeError> {
    match version {
        Some(version) if version < OLDEST_KERNEL => Err(ProbeError::OldKernel(version)),
        _ => Ok(()),
    }
}

/// A transaction for a probe, and the kernel module that each operation needs. The last operation
/// must be refused, and has no module.
type Wanted = (Transaction, Vec<&'static str>);

/// The features that the backend needs.
fn wanted(families: &[Family]) -> Wanted {
    with_rules(families, |family| {
        let (fib, reject) = match family {
            Family::Ip => ("nft_fib_ipv4", "nft_reject_ipv4"),
            Family::Ip6 => ("nft_fib_ipv6", "nft_reject_ipv6"),
        };
        let key = vec![Selector::DestinationPort];
        let by_port = Statement::DnatMap { key, map: BY_PORT.into() };
        vec![
            (NAT_IN, vec![Statement::FibLocal(Side::Destination)], fib),
            (NAT_IN, vec![Statement::Protocol(Protocol::Tcp), by_port], "nft_nat"),
            (NAT_IN, vec![by_slot(SlotChoice::Random, 1)], "nft_numgen"),
            (NAT_OUT, vec![Statement::Masquerade], "nft_masq"),
            (FILTER, vec![Statement::CtStateNew], "nft_ct"),
            (FILTER, vec![Statement::Reject], reject),
        ]
    })
}

fn wanted_for_hashes(families: &[Family]) -> Wanted {
    let by_hash = || by_slot(Method::Maglev.slot_choice(), table_size(1));
    with_rules(families, |_| vec![(NAT_IN, vec![by_hash()], "nft_hash")])
}

fn by_slot(choice: SlotChoice, slots: u32) -> Statement {
    let (key, map) = (vec![Selector::DestinationPort], BY_SLOT.into());
    Statement::DnatSlot { protocol: Protocol::Tcp, key, choice, slots, map }
}

/// Rules of each family, each in a chain and with the module that it needs, and all that they use.
fn with_rules(
    families: &[Family],
    rules: impl Fn(Family) -> Vec<(&'static str, Vec<Statement>, &'static str)>,
) -> Wanted {
    let mut transaction = Transaction::new();
    let mut modules = Vec::new();
    for &family in families {
        let table = &Table::new(family, TABLE);
        transaction.add_table(table);
        modules.push("nf_tables");
        for (name, kind, hook, module) in [
            (NAT_IN, ChainKind::Nat, Hook::Prerouting, "nft_chain_nat"),
            (NAT_OUT, ChainKind::Nat, Hook::Postrouting, "nft_chain_nat"),
            (FILTER, ChainKind::Filter, Hook::Input, "nf_tables"),
        ] {
            let chain = BaseChain { name: ChainName::new(name), kind, hook, priority: 0 };
            transaction.add_base_chain(table, chain);
            modules.push(module);
        }
        let port = Field::Port(Protocol::Tcp);
        let endpoint = [family.address_field(), port];
        for (map, key) in [(BY_PORT, vec![port]), (BY_SLOT, vec![port, Field::Slot])] {
            transaction.add_set(table, SetDef::map(map, key, endpoint).into());
            modules.push("nf_tables");
        }
        for (chain, statements, module) in rules(family) {
            transaction.add_rule(table, ChainName::new(chain), Rule::new(statements));
            modules.push(module);
        }
    }
    transaction.delete_chain(&Table::new(Family::Ip, TABLE), ChainName::new(NO_SUCH_CHAIN));
    (transaction, modules)
}

fn dry_run(
    transport: &mut dyn Transport,
    (transaction, modules): &Wanted,
) -> Result<(), ProbeError> {
    let (first, others) = match transport.commit(transaction) {
        Err(TransportError::Refused(first, others)) => (first, others),
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(ProbeError::NothingRefused),
    };
    let mut missing: Vec<&'static str> = Vec::new();
    let mut reason = None;
    for refusal in std::iter::once(first).chain(others) {
        // The table is nobody's, so that no owner forbids changes of the table.
        if refusal.concerns_table() {
            return Err(ProbeError::Privilege);
        }
        // Without nf_tables, the kernel refuses the whole.
        if refusal.operation == usize::MAX {
            return Err(ProbeError::Refused { refusal, modules: vec!["nf_tables"] });
        }
        // The last operation must be refused, and has no module.
        let Some(&module) = modules.get(refusal.operation) else { continue };
        if !missing.contains(&module) {
            missing.push(module);
        }
        // A rule is also refused when its chain was, so that the first refusal is the cause.
        reason.get_or_insert(refusal);
    }
    match reason {
        None => Ok(()),
        Some(refusal) => Err(ProbeError::Refused { refusal, modules: missing }),
    }
}

#[cfg(test)]
mod tests {
    use switchyard_kernel::nftables::testing::InterceptingTransport;

    use super::*;

    /// Probes a kernel without these modules for something.
    fn probe_without(missing: &'static [&'static str], wanted: &Wanted) -> Result<(), ProbeError> {
        let modules = wanted.1.clone();
        let mut kernel = InterceptingTransport::without_kernel(move |transaction: &Transaction| {
            let last = transaction.operations().len() - 1;
            assert_eq!(modules.len(), last, "each operation has its module");
            let refused = |(operation, subject): (usize, String)| Refusal {
                operation,
                element: None,
                subject,
                errno: Some(2),
                reason: "No such file or directory".into(),
            };
            let operations = transaction.operations().iter().enumerate();
            let mut refusals = operations
                .filter(|(at, _)| *at == last || missing.contains(&modules[*at]))
                .map(|(at, operation)| refused((at, operation.subject())));
            let first = refusals.next().unwrap();
            Err(TransportError::Refused(first, refusals.collect()))
        });
        dry_run(&mut kernel, wanted)
    }

    #[test]
    fn modules_that_are_missing_are_named() {
        let run = |modules| probe_without(modules, &wanted(&Family::ALL));
        run(&[]).unwrap();
        run(&["nft_hash"]).unwrap();
        let error = run(&["nft_fib_ipv6", "nft_masq"]).unwrap_err();
        assert!(matches!(error, ProbeError::Refused { .. }), "{error:?}");
        let text = error.to_string();
        let end = "No such file or directory (needed of the kernel: nft_masq, nft_fib_ipv6)";
        assert!(text.starts_with("cannot add rule ") && text.ends_with(end), "{text}");
    }

    #[test]
    fn a_refusal_of_the_whole_is_no_answer_about_modules() {
        for (errno, reason, expected) in [
            (1, "Operation not permitted", "needs CAP_NET_ADMIN"),
            (
                95,
                "Operation not supported",
                "cannot commit the transaction: Operation not supported (needed of the kernel: \
                 nf_tables)",
            ),
        ] {
            let mut kernel = InterceptingTransport::without_kernel(move |_: &Transaction| {
                let refusal = Refusal {
                    operation: usize::MAX,
                    element: None,
                    subject: "commit the transaction".into(),
                    errno: Some(errno),
                    reason: reason.into(),
                };
                Err(TransportError::Refused(refusal, Vec::new()))
            });
            let error = dry_run(&mut kernel, &wanted(&Family::ALL)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn hashes_are_probed_apart() {
        let run = |modules| probe_without(modules, &wanted_for_hashes(&Family::ALL));
        run(&["nft_numgen"]).unwrap();
        let text = run(&["nft_hash"]).unwrap_err().to_string();
        assert!(text.ends_with("(needed of the kernel: nft_hash)"), "{text}");
        let one = wanted_for_hashes(&[Family::Ip6]);
        probe_without(&[], &one).unwrap();
        assert!(!has_hashes_after(&run(&["nft_hash"]).unwrap_err()));
        // Failures that pass are no answer.
        assert!(has_hashes_after(&ProbeError::Privilege));
        let mut refused = run(&["nft_hash"]).unwrap_err();
        if let ProbeError::Refused { refusal, .. } = &mut refused {
            refusal.errno = Some(libc::ENOMEM);
        }
        assert!(has_hashes_after(&refused));
    }

    #[test]
    fn a_kernel_that_refuses_nothing_is_not_trusted() {
        let mut credulous = InterceptingTransport::without_kernel(|_| Ok(()));
        let error = dry_run(&mut credulous, &wanted(&Family::ALL)).unwrap_err();
        assert_eq!(error.to_string(), "nftables did not refuse what cannot be");
    }

    #[test]
    fn kernels_have_an_age() {
        let check = |major, minor| check_version(Some(KernelVersion(major, minor)));
        check(6, 1).unwrap();
        check(5, 13).unwrap();
        check_version(None).unwrap();
        assert_eq!(
            check(5, 10).unwrap_err().to_string(),
            "the kernel is 5.10; 5.13 or newer is needed"
        );
        check(4, 18).unwrap_err();
    }
}
