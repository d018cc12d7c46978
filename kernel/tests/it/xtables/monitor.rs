//! Changes of other programs are reported, and a program's own are not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use switchyard_kernel::xtables::{
    Alteration, Fingerprint, Flavour, OwnChange, Programs, Table, TableMonitor, TableRecord, Tools,
    Watched,
};
use switchyard_model::IpFamily;
use tokio::time::timeout;

use super::common::{CANARY, PATIENCE, chains, in_namespace, jumps, run, tools};

/// Long enough for several looks at the tables.
const SEVERAL_LOOKS: Duration = Duration::from_secs(1);

/// A change of these tables that has just been made.
fn own_change(programs: &Programs, before: Option<Fingerprint>, tables: Vec<Table>) -> OwnChange {
    OwnChange { before, after: Fingerprint::read(programs), tables, has_waited: false }
}

struct Watch {
    flavour: Flavour,
    tools: Tools,
    record: Arc<TableRecord>,
    monitor: TableMonitor,
}

impl Watch {
    fn new(flavour: Flavour) -> Self {
        let (tools, record) = (tools(flavour), Arc::new(TableRecord::default()));
        let watched = Watched { canary: CANARY, jumps: jumps() };
        let monitor = TableMonitor::new(tools.clone(), watched, Arc::clone(&record));
        Self { flavour, tools, record, monitor }
    }

    /// Makes the chains of both families.
    fn program(&self) {
        for programs in self.tools.iter() {
            let before = Fingerprint::read(programs);
            let dump = programs.save().expect("a dump");
            let mut changes = chains();
            for jump in jumps() {
                let rules = dump.chain(jump.table, jump.from).unwrap_or_default();
                if rules.contains(&jump.rule) {
                    changes.delete_rule(jump.table, jump.from, &jump.rule);
                }
            }
            programs.restore(&changes.to_text()).expect("chains");
            let own = own_change(programs, before, changes.tables());
            self.record.set_intact(programs.family(), &own);
        }
    }

    /// Makes the chains of both families, as a full sync does.
    fn compare(&self) {
        let start = Instant::now();
        self.program();
        self.record.set_resynced(start);
    }

    /// Changes a rule of one family, as a sync of what changed does.
    fn change(&self, family: IpFamily, rule: &str) {
        for programs in self.tools.iter() {
            let before = Fingerprint::read(programs);
            if programs.family() == family {
                programs.restore(&format!("*nat\n{rule}\nCOMMIT\n")).expect("a rule");
            }
            let tables = if programs.family() == family { vec![Table::Nat] } else { Vec::new() };
            self.record.set_changed(programs.family(), &own_change(programs, before, tables));
        }
    }

    async fn changed(&mut self) -> Alteration {
        let changed = timeout(PATIENCE, self.monitor.changed()).await;
        changed.expect("it is noticed").expect("the runtime runs")
    }

    async fn assert_silent(&mut self) {
        let changed = timeout(SEVERAL_LOOKS, self.monitor.changed()).await;
        assert!(changed.is_err(), "{:?} is reported", changed.map(|changed| changed.ok()));
    }
}

async fn watch(mut watch: Watch) {
    let flavour = watch.flavour;
    // Nothing is programmed yet, so that nothing can be missing.
    run(flavour, "iptables", "-A INPUT -j ACCEPT");
    watch.assert_silent().await;
    watch.compare();
    watch.assert_silent().await;

    for (base, flush) in [
        ("iptables", "-F INPUT"),
        ("iptables", "-t nat -F"),
        ("ip6tables", "-t nat -F POSTROUTING"),
        ("ip6tables", "-t mangle -X TEST-CANARY"),
    ] {
        run(flavour, base, flush);
        assert_eq!(watch.changed().await, Alteration::Missing, "{base} {flush}");
        watch.compare();
        watch.assert_silent().await;
    }

    // A rule in a chain: the chains and jumps are there. The last resync was just now.
    run(flavour, "iptables", "-t nat -F TEST-MAIN");
    assert_eq!(watch.changed().await, Alteration::Altered);
    // Without a resync, the report comes again.
    assert_eq!(watch.changed().await, Alteration::Altered);
    watch.compare();
    watch.assert_silent().await;
}

#[test]
fn changes_are_reported() {
    with_each(watch);
}

/// Own changes, of either family, are no reason to compare anything. As nothing has been compared
/// yet, an alteration would be reported at once.
#[test]
fn own_changes_are_not_reported() {
    with_each(async |mut watch| {
        watch.program();
        for i in 0..4 {
            let rule = format!("-A TEST-PORT-1 -p tcp -m tcp --dport {} -j RETURN", i + 1);
            watch.change(IpFamily::ALL[i % 2], &rule);
            watch.assert_silent().await;
        }
    });
}

/// Rules that another program removes while a program reads the tables and changes them are no
/// part of that change, though the fingerprint after it covers both.
#[test]
fn changes_of_others_beside_own_ones_are_reported() {
    for is_compared in [true, false] {
        with_each(async |mut watch| {
            watch.program();
            watch.assert_silent().await;
            let v4 = watch.tools.get(IpFamily::V4).expect("programs");
            let before = Fingerprint::read(v4);
            run(watch.flavour, "iptables", "-t filter -F INPUT");
            let rule = "-A TEST-PORT-1 -p tcp -m tcp --dport 9 -j RETURN";
            v4.restore(&format!("*nat\n{rule}\nCOMMIT\n")).expect("a rule");
            let own = own_change(v4, before, vec![Table::Nat]);
            match is_compared {
                true => watch.record.set_intact(IpFamily::V4, &own),
                false => watch.record.set_changed(IpFamily::V4, &own),
            }
            assert_eq!(watch.changed().await, Alteration::Missing, "{}", watch.flavour);
        });
    }
}

/// A call that is dropped loses nothing.
#[test]
fn waiting_can_be_cancelled() {
    with_each(async |mut watch| {
        watch.program();
        watch.assert_silent().await;
        run(watch.flavour, "iptables", "-F OUTPUT");
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "it is lost");
            let changed = timeout(Duration::from_millis(3), watch.monitor.changed()).await;
            if let Ok(changed) = changed {
                assert_eq!(changed.expect("the runtime runs"), Alteration::Missing);
                break;
            }
        }
    });
}

/// Runs a test with each flavour, in a namespace of its own.
fn with_each(test: impl AsyncFn(Watch) + Sync) {
    for flavour in Flavour::ALL {
        in_namespace(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async { test(Watch::new(flavour)).await });
        });
    }
}
