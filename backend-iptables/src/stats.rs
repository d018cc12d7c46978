//! What the backend counts, for whoever asks while it works.

use std::sync::atomic::{AtomicU64, Ordering};

use proxy_core::model::{IpFamily, PerFamily};

use crate::{layout::Table, tool::input::Changes};

/// Rules and failures, counted since the backend was made. Shared: reading disturbs nobody.
#[derive(Debug, Default)]
pub struct Stats {
    families: PerFamily<FamilyStats>,
}

/// The rules of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The table: `filter` or `nat`.
    pub table: &'static str,
    /// The rules in our chains. Jumps from chains of others do not count.
    pub owned: u64,
    /// The rules that the last sync wrote.
    pub written: u64,
}

#[derive(Debug, Default)]
struct FamilyStats {
    filter: TableStats,
    nat: TableStats,
    syncs: AtomicU64,
    failures: AtomicU64,
    partial_failures: AtomicU64,
}

#[derive(Debug, Default)]
struct TableStats {
    owned: AtomicU64,
    written: AtomicU64,
}

impl Stats {
    /// The rules of a family, of each table that has any of ours; nothing before the first sync.
    pub fn rules(&self, family: IpFamily) -> Vec<RuleCount> {
        let stats = self.families.of(family);
        if stats.syncs.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let count = |table: Table, stats: &TableStats| RuleCount {
            table: table.name(),
            owned: stats.owned.load(Ordering::Relaxed),
            written: stats.written.load(Ordering::Relaxed),
        };
        vec![count(Table::Filter, &stats.filter), count(Table::Nat, &stats.nat)]
    }

    /// How often `iptables-restore` has failed for a family.
    pub fn failures(&self, family: IpFamily) -> u64 {
        self.families.of(family).failures.load(Ordering::Relaxed)
    }

    /// How often it was a sync of what had changed, after which everything was compared.
    pub fn partial_failures(&self, family: IpFamily) -> u64 {
        self.families.of(family).partial_failures.load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self, family: IpFamily, is_full: bool) {
        let stats = self.families.of(family);
        stats.failures.fetch_add(1, Ordering::Relaxed);
        if !is_full {
            stats.partial_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// These changes were made. Those of a full sync know all rules there are.
    pub(crate) fn committed(&self, family: IpFamily, changes: &Changes, is_full: bool) {
        let family = self.families.of(family);
        for (table, stats) in [(Table::Filter, &family.filter), (Table::Nat, &family.nat)] {
            let before = if is_full { 0 } else { stats.owned.load(Ordering::Relaxed) };
            let owned = before.saturating_add_signed(changes.owned(table));
            stats.owned.store(owned, Ordering::Relaxed);
            stats.written.store(changes.written(table), Ordering::Relaxed);
        }
        family.syncs.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Chain;

    #[test]
    fn rules_add_up() {
        let stats = Stats::default();
        assert_eq!(stats.rules(IpFamily::V4), []);
        let chain =
            |rules: usize| Chain { name: "KUBE-X".into(), rules: vec!["-j X".into(); rules] };
        let mut full = Changes::default();
        full.write_chain(Table::Nat, chain(3));
        full.own(Table::Nat, 5);
        full.own(Table::Filter, 2);
        stats.committed(IpFamily::V4, &full, true);
        let mut partial = Changes::default();
        partial.insert_rule(Table::Nat, "KUBE-X", "-j Y");
        partial.own(Table::Nat, 1);
        partial.own(Table::Filter, -2);
        stats.committed(IpFamily::V4, &partial, false);
        let expected = [
            RuleCount { table: "filter", owned: 0, written: 0 },
            RuleCount { table: "nat", owned: 6, written: 1 },
        ];
        assert_eq!(stats.rules(IpFamily::V4), expected);
        stats.committed(IpFamily::V4, &full, true);
        assert_eq!(stats.rules(IpFamily::V4)[1], RuleCount { table: "nat", owned: 5, written: 3 });
        assert_eq!(stats.rules(IpFamily::V6), []);
        stats.failed(IpFamily::V6, true);
        stats.failed(IpFamily::V6, false);
        assert_eq!((stats.failures(IpFamily::V6), stats.partial_failures(IpFamily::V6)), (2, 1));
        assert_eq!(stats.failures(IpFamily::V4), 0);
    }
}
