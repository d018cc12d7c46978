//! Whether the kernel can do what nftables mode needs.
//!
//! It is asked for a chain, and a rule, for each of its modules that are used, and then for
//! something that must be refused, so that nothing of it is done. If that is the only refusal, the
//! rest would have worked. The table may be there, with what an earlier run has programmed.

use std::{env, fs};

use backend_nft::{
    ruleset::{
        BaseChain, ChainKind, ChainName, Family, Hook, Rule, Side, Statement, Transaction, Verdict,
    },
    transport::{Transport, TransportError, TransportKind},
};
use proxy_core::model::Protocol;

use super::Lacking;
use crate::backend;

/// The oldest kernel whose nftables do what is needed.
const OLDEST_KERNEL: (u32, u32) = (5, 13);
/// If this is set to anything, any kernel will do.
const SKIP_KERNEL_CHECK: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";
/// The chains that are asked for.
const NAT_IN: &str = "switchyard-probe-in";
const NAT_OUT: &str = "switchyard-probe-out";
const FILTER: &str = "switchyard-probe-filter";
/// What must be refused.
const NO_SUCH_CHAIN: &str = "switchyard-no-such-chain";

pub(super) fn probe(transport: TransportKind) -> Result<(), Lacking> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if env::var_os(SKIP_KERNEL_CHECK).is_none_or(|value| value.is_empty()) {
        new_enough(release.trim()).map_err(Lacking::OnNode)?;
    }
    // This one's own needs. The kernel is asked straight in any case: the program nft does not say
    // which operation was refused.
    transport.open().map_err(|error| lacks(&error))?;
    let mut transport = TransportKind::Netlink.open().map_err(|error| lacks(&error))?;
    let families: Vec<Family> =
        backend::enabled(&backend::families()).into_iter().map(Family::from).collect();
    dry_run(transport.as_mut(), &families)
}

/// Whether the kernel is new enough, by its release (`6.1.0-18-amd64`). One that cannot be read
/// is given a chance.
fn new_enough(release: &str) -> Result<(), String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Ok(());
    };
    if (major, minor) >= OLDEST_KERNEL {
        return Ok(());
    }
    let (oldest_major, oldest_minor) = OLDEST_KERNEL;
    Err(format!("the kernel is {release}; {oldest_major}.{oldest_minor} or newer is needed"))
}

/// What is asked for in these families, and the module that each operation needs.
fn wanted(families: &[Family]) -> (Transaction, Vec<&'static str>) {
    let mut transaction = Transaction::new();
    let mut modules = Vec::new();
    for &family in families {
        let (fib, reject, address) = match family {
            Family::Ip => ("nft_fib_ipv4", "nft_reject_ipv4", [127, 0, 0, 1].into()),
            Family::Ip6 => ("nft_fib_ipv6", "nft_reject_ipv6", [0, 0, 0, 0, 0, 0, 0, 1u16].into()),
        };
        transaction.add_table(family);
        modules.push("nf_tables");
        for (name, kind, hook, module) in [
            (NAT_IN, ChainKind::Nat, Hook::Prerouting, "nft_chain_nat"),
            (NAT_OUT, ChainKind::Nat, Hook::Postrouting, "nft_chain_nat"),
            (FILTER, ChainKind::Filter, Hook::Input, "nf_tables"),
        ] {
            let chain = BaseChain { name: ChainName::new(name), kind, hook, priority: 0 };
            transaction.add_base_chain(family, chain);
            modules.push(module);
        }
        let random = Statement::RandomVerdict(vec![Verdict::Accept, Verdict::Drop]);
        let dnat = Statement::Dnat { address, port: 1 };
        let tcp = Statement::Protocol(Protocol::Tcp);
        for (chain, statements, module) in [
            (NAT_IN, vec![Statement::FibLocal(Side::Destination)], fib),
            (NAT_IN, vec![random], "nft_numgen"),
            (NAT_IN, vec![tcp, dnat], "nft_nat"),
            (NAT_OUT, vec![Statement::Masquerade], "nft_masq"),
            (FILTER, vec![Statement::CtStateNew], "nft_ct"),
            (FILTER, vec![Statement::Reject], reject),
        ] {
            transaction.add_rule(family, ChainName::new(chain), Rule::new(statements));
            modules.push(module);
        }
    }
    transaction.delete_chain(Family::Ip, ChainName::new(NO_SUCH_CHAIN));
    (transaction, modules)
}

fn dry_run(transport: &mut dyn Transport, families: &[Family]) -> Result<(), Lacking> {
    let (transaction, modules) = wanted(families);
    let (first, others) = match transport.commit(&transaction) {
        Err(TransportError::Refused(first, others)) => (first, others),
        Err(error) => return Err(lacks(&error)),
        Ok(_) => {
            return Err(Lacking::Otherwise("nftables did not refuse what cannot be".into()));
        }
    };
    let mut missing: Vec<&str> = Vec::new();
    let mut why = None;
    for refusal in std::iter::once(first).chain(others) {
        // What must be refused comes last, and has no module.
        let Some(module) = modules.get(refusal.operation) else { continue };
        if !missing.contains(module) {
            missing.push(module);
        }
        why.get_or_insert(refusal);
    }
    match why {
        None => Ok(()),
        // A rule is refused, too, because its chain was.
        Some(refusal) => Err(Lacking::OnNode(format!(
            "cannot {}: {} (needed of the kernel: {})",
            refusal.subject,
            refusal.reason,
            missing.join(", ")
        ))),
    }
}

fn lacks(error: &TransportError) -> Lacking {
    Lacking::OnNode(crate::error_chain(error))
}

#[cfg(test)]
mod tests {
    use backend_nft::{
        ruleset::{SetName, TableDump},
        transport::{CommitStats, Refusal},
    };
    use packet_rig::NetNs;

    use super::*;

    /// A kernel without these modules.
    struct Without(&'static [&'static str]);

    impl Transport for Without {
        fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
            let (_, modules) = wanted(&Family::ALL);
            let last = transaction.operations().len() - 1;
            assert_eq!(modules.len(), last, "each operation has its module");
            let refused = |(operation, subject): (usize, String)| Refusal {
                operation,
                subject,
                errno: Some(2),
                reason: "No such file or directory".into(),
            };
            let operations = transaction.operations().iter().enumerate();
            let mut refusals = operations
                .filter(|(at, _)| *at == last || self.0.contains(&modules[*at]))
                .map(|(at, operation)| refused((at, operation.subject())));
            let first = refusals.next().unwrap();
            Err(TransportError::Refused(first, refusals.collect()))
        }

        fn read(&mut self, _: Family, _: &[SetName]) -> Result<Option<TableDump>, TransportError> {
            Ok(None)
        }

        fn name(&self) -> &'static str {
            "a kernel without"
        }
    }

    #[test]
    fn modules_that_are_missing_are_named() {
        let run = |modules| dry_run(&mut Without(modules), &Family::ALL);
        assert_eq!(run(&[]), Ok(()));
        let lacking = run(&["nft_fib_ipv6", "nft_masq"]).unwrap_err();
        assert!(matches!(lacking, Lacking::OnNode(_)), "{lacking:?}");
        let text = lacking.to_string();
        let end = "No such file or directory (needed of the kernel: nft_masq, nft_fib_ipv6)";
        assert!(text.starts_with("cannot add rule ") && text.ends_with(end), "{text}");
    }

    #[test]
    fn this_kernel_can_and_nothing_is_done() {
        let namespace = NetNs::new_bare().unwrap();
        let list = || namespace.output("nft", &["list", "ruleset"], "").unwrap();
        for before in ["", "add table ip kube-proxy\nadd chain ip kube-proxy services\n"] {
            namespace.output("nft", &["-f", "-"], before).unwrap();
            let listed = list();
            for kind in [TransportKind::Netlink, TransportKind::Json] {
                let (can, opened) = namespace.run(|| (probe(kind), kind.open())).unwrap();
                match opened {
                    Ok(_) => assert_eq!(can, Ok(()), "{kind:?}"),
                    // The program here may be too old.
                    Err(error) => assert_eq!(can, Err(lacks(&error)), "{kind:?}"),
                }
            }
            assert_eq!(list(), listed);
        }
    }

    #[test]
    fn kernels_have_an_age() {
        new_enough("6.1.0-18-amd64").unwrap();
        new_enough("5.13.0").unwrap();
        new_enough("unknown").unwrap();
        assert_eq!(
            new_enough("5.10.0-28").unwrap_err(),
            "the kernel is 5.10.0-28; 5.13 or newer is needed"
        );
        new_enough("4.18.0").unwrap_err();
    }
}
