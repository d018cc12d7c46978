//! Chains of Switchyard's names beside those of Kubernetes. Each test runs once with each flavour.

use std::time::Duration;

use switchyard_core::{
    proxier::{Backend, ExternalChange, Mode, Proxier},
    testing::{web, web_slice},
};
use switchyard_iptables::{ChainNaming, Flavour, IptablesBackend, IptablesConfig, IptablesProxier};
use tokio::time::timeout;

use crate::common::{Node, Tables, config, iptables_config, start, with_each};

fn own_config(flavour: Flavour) -> IptablesConfig {
    let mut made = iptables_config(flavour);
    made.chains = ChainNaming::Switchyard;
    made
}

fn start_own(flavour: Flavour) -> Node {
    let proxier = IptablesProxier::new(own_config(flavour)).expect("iptables is installed");
    Node::new(config(), proxier)
}

/// The lines of both families that name chains with this prefix, sorted.
fn lines(flavour: Flavour, prefix: &str) -> Vec<String> {
    let both = Tables::both(flavour).map(|tables| tables.save());
    let mut lines: Vec<String> =
        both.iter().flat_map(|text| text.lines()).map(str::to_owned).collect();
    lines.retain(|line| line.contains(prefix));
    lines.sort();
    lines
}

#[test]
fn chains_of_kubernetes_stay_as_they_are() {
    with_each(|flavour| {
        let tables = Tables::v4(flavour);
        tables.restore(include_str!("fixtures/kube-proxy.rules"));
        let theirs = lines(flavour, "KUBE-");
        let mut proxy = start_own(flavour);
        proxy.sync(web());
        proxy.sync([web_slice(&[2])]);
        assert_eq!(proxy.full().bytes, 0);
        assert_eq!(lines(flavour, "KUBE-"), theirs);
        proxy.clean_up();
        assert_eq!(lines(flavour, "KUBE-"), theirs);
        assert_eq!(lines(flavour, "SWYD-"), [""; 0]);
        proxy.full();
        let ours = lines(flavour, "SWYD-");
        start(flavour, config()).clean_up();
        assert_eq!(lines(flavour, "SWYD-"), ours);
    });
}

/// ipvs mode has chains of kube-proxy's names alone.
#[test]
fn all_own_chains_are_removed_beside_ipvs_mode() {
    with_each(|flavour| {
        let (mut first, mut second) = (start(flavour, config()), start_own(flavour));
        first.sync(web());
        let first_alone = lines(flavour, "KUBE-");
        second.sync(web());
        let backend = IptablesBackend::new(own_config(flavour));
        backend.clean_up(Some(Mode::IPVS)).expect("a clean-up");
        assert_eq!(lines(flavour, "KUBE-"), first_alone);
        assert_eq!(lines(flavour, "SWYD-"), [""; 0]);
    });
}

#[test]
fn a_monitor_misses_its_own_chains_alone() {
    with_each(|flavour| {
        let (mut first, mut second) = (start(flavour, config()), start_own(flavour));
        first.sync(web());
        second.sync(web());
        let tables = Tables::v4(flavour);
        let mut monitor = second.proxier.monitor().expect("a monitor");
        let remove_jump = |to: &str| {
            let rules = tables.chain("nat", "POSTROUTING");
            let at = rules.iter().position(|rule| rule.ends_with(to)).expect("a jump");
            tables.run(&format!("-t nat -D POSTROUTING {}", at + 1));
        };
        second.runtime.block_on(async {
            remove_jump("KUBE-POSTROUTING");
            tables.run("-t nat -F KUBE-SERVICES");
            // That rules of a table differ may be reported as a suspicion.
            let first_report = timeout(Duration::from_secs(1), monitor.externally_changed()).await;
            let is_missing = matches!(first_report, Ok(Ok(ExternalChange::Changed { .. })));
            assert!(!is_missing, "{first_report:?}");
            remove_jump("SWYD-POSTROUTING");
            let missing = async {
                while !matches!(
                    monitor.externally_changed().await,
                    Ok(ExternalChange::Changed { .. })
                ) {}
            };
            timeout(Duration::from_secs(20), missing).await.expect("a report");
        });
    });
}
