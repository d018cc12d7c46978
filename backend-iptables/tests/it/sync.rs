//! Single syncs with a real kernel: how much they send, what they repair, and what they leave
//! alone. Each test runs once with each flavour.

use crate::common::{
    Tables, config, in_namespace, iptables_config, proxier, start, web_chain, with_each,
};
use switchyard_core::testing::{Stepped, service, web, web_slice};
use switchyard_iptables::{Flavour, IptablesProxier};
use test_netns::RefusableIptables;

#[test]
fn a_sync_sends_what_changed_and_no_more() {
    with_each(|flavour| {
        let mut proxy = start(flavour, config());
        proxy.sync(web());
        assert_eq!(proxy.sync([]).bytes, 0);

        // `*nat`, a chain, the masquerading rule, three endpoints, `COMMIT`.
        let report = proxy.sync([web_slice(&[1, 2, 4])]);
        assert_eq!(report.messages, 7);
        let tables = Tables::v4(flavour);
        let rules = tables.chain("nat", &web_chain(tables));
        assert_eq!(rules.len(), 4, "{rules:?}");
        assert!(rules[3].ends_with("-j DNAT --to-destination 10.244.0.4:80"), "{rules:?}");

        // The endpoint on this node goes, and its chain with it.
        proxy.sync([web_slice(&[2, 4])]);
        assert!(!tables.save().contains("KUBE-SEP-"));

        // None is left: one rule of each kind moves from table to table.
        proxy.sync([web_slice(&[])]);
        let refused = tables.chain("filter", "KUBE-SERVICES");
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(!tables.save().contains("KUBE-SVC-"));
        assert_eq!(tables.chain("nat", "KUBE-SERVICES").len(), 1);
    });
}

#[test]
fn many_changes_at_once_are_as_good_as_one_by_one() {
    with_each(|flavour| {
        let mut proxy = start(flavour, config());
        let services = |port: i64| {
            (0..200u8).map(move |i| {
                service(&format!("s{i}"), &format!("10.96.1.{i}")).port("http", "TCP", port).apply()
            })
        };
        proxy.sync(services(80));
        let refused = || Tables::v4(flavour).chain("filter", "KUBE-SERVICES");
        assert_eq!(refused().len(), 200);
        // Deleting them one by one would take longer.
        let report = proxy.sync(services(81));
        assert_eq!(report.messages, 203, "the chain is written anew");
        assert!(refused().iter().all(|rule| rule.contains("--dport 81")));
        assert_eq!(proxy.restart(proxier(flavour)).bytes, 0);
    });
}

#[test]
fn a_family_whose_programs_cannot_be_run_costs_the_other_nothing() {
    with_each(|flavour| {
        let programs = RefusableIptables::new(flavour);
        let mut made = iptables_config(flavour);
        made.programs.directory = Some(programs.directory().to_owned());
        let mut proxy =
            Stepped::new(config(), IptablesProxier::new(made).expect("they are installed"));
        proxy.sync(web());
        let save = programs.directory().join(format!("ip6tables-{flavour}-save"));
        std::fs::remove_file(save).expect("a link");
        let tables = Tables::v4(flavour);
        tables.run("-t filter -F KUBE-FORWARD");
        let report = proxy.full();
        assert_eq!(tables.chain("filter", "KUBE-FORWARD").len(), 3);
        // The repair was a part of an attempt that failed.
        assert_eq!(report.drift.objects, 1, "{report:?}");
        assert_eq!(proxy.full().drift.objects, 0);
    });
}

/// An owned chain that another program uses cannot be deleted.
#[test]
fn a_chain_that_others_lead_to_is_emptied() {
    with_each(|flavour| {
        let mut proxy = start(flavour, config());
        proxy.sync(web());
        let tables = Tables::v4(flavour);
        let chain = web_chain(tables);
        tables.run(&format!("-t nat -A PREROUTING -s 192.0.2.1/32 -j {chain}"));
        proxy.sync([service("web", "10.96.0.1").delete()]);
        assert_eq!(tables.chain("nat", &chain).len(), 0);
        assert_eq!(tables.chain("nat", "KUBE-SERVICES").len(), 1);
        assert!(tables.save().contains(&format!(":{chain} ")));
        proxy.clean_up();
        assert!(tables.save().contains(&format!(":{chain} ")));
        assert!(!tables.save().contains(":KUBE-SERVICES "));
    });
}

#[test]
fn chains_of_the_other_flavour_go_with_the_first_sync_and_the_clean_up() {
    in_namespace(|| {
        let synced =
            || Flavour::ALL.map(|flavour| Tables::v4(flavour).save().contains(":KUBE-SERVICES "));
        let mut proxies = Flavour::ALL.map(|flavour| start(flavour, config()));
        proxies[0].sync(web());
        proxies[1].sync(web());
        assert_eq!(synced(), [false, true]);
        proxies[0].full();
        assert_eq!(synced(), [true, true]);
        proxies[0].clean_up();
        assert_eq!(synced(), [false, false]);
    });
}

/// A table that is replaced as a whole keeps the order of other rules, and their counters.
#[test]
fn a_clean_up_leaves_others_rules_as_they_are() {
    const OTHERS: &str = "\
*filter
:INPUT ACCEPT [11:22]
:FORWARD DROP [33:44]
:OUTPUT ACCEPT [55:66]
:KUBERNETES - [0:0]
:LAST - [0:0]
[1:2] -A INPUT -p tcp -m tcp --dport 22 -m comment --comment \"KUBE-SERVICES is none of mine\" -j LAST
[3:4] -A INPUT -p udp -m multiport --dports 53,67 -g KUBERNETES
[5:6] -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
[7:8] -A KUBERNETES -m limit --limit 3/sec -j LAST
[9:10] -A LAST -j LOG --log-prefix \"last: \"
COMMIT
";
    with_each(|flavour| {
        for tables in Tables::both(flavour) {
            tables.restore(OTHERS);
        }
        let is_kube_proxys =
            |line: &&str| [":KUBE-", "-A KUBE-", "-j KUBE-"].iter().any(|mark| line.contains(mark));
        let others = || {
            Tables::both(flavour).map(|tables| {
                let text = tables.save_with_counters("filter");
                let lines = text.lines().filter(|line| !is_kube_proxys(line));
                lines.map(str::to_owned).collect::<Vec<_>>()
            })
        };
        let mut proxy = start(flavour, config());
        proxy.sync(web());
        let before = others();
        // ip6tables-nft-restore 1.8.9 leaves counters out.
        assert!(before[0].iter().any(|line| line.starts_with("[9:10] -A LAST")), "{before:#?}");
        proxy.clean_up();
        assert_eq!(others(), before);
    });
}
