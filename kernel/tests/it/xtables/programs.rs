//! The programs: which flavour is chosen, what is read, and what is refused.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use switchyard_kernel::xtables::{
    Chain, Changes, Flavour, InstalledPrograms, ProgramOptions, Programs, RuleText, Table,
    ToolError,
};
use switchyard_model::{IpFamily, PerFamily};
use tempfile::TempDir;

use super::common::{in_namespace, options, run, tools};

const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

fn chosen(wanted: Option<Flavour>) -> Flavour {
    let installed = InstalledPrograms::find(&options());
    let tools = installed.choose(wanted, BOTH).expect("installed").usable().expect("usable");
    assert_eq!(tools.families(), BOTH);
    tools.flavour()
}

#[test]
fn the_flavour_is_the_hosts() {
    in_namespace(|| {
        assert_eq!(chosen(None), Flavour::Nft, "there are no rules");
        let add_rules = |flavour| {
            run(flavour, "iptables", "-A INPUT -j ACCEPT");
            run(flavour, "iptables", "-A INPUT -j DROP");
        };
        add_rules(Flavour::Legacy);
        assert_eq!(chosen(None), Flavour::Legacy, "it has more rules");
        add_rules(Flavour::Nft);
        assert_eq!(chosen(None), Flavour::Nft, "both have as many");

        // A chain of the kubelet counts more than any number of rules.
        run(Flavour::Legacy, "iptables", "-t mangle -N KUBE-IPTABLES-HINT");
        assert_eq!(chosen(None), Flavour::Legacy);
        run(Flavour::Nft, "ip6tables", "-t mangle -N KUBE-KUBELET-CANARY");
        assert_eq!(chosen(None), Flavour::Nft);
        assert_eq!(chosen(Some(Flavour::Legacy)), Flavour::Legacy);
    });
}

#[test]
fn a_match_that_the_kernel_lacks_is_known() {
    in_namespace(|| {
        for flavour in Flavour::ALL {
            let has = |name| tools(flavour).has_match(name);
            let of = ["recent", "no-such-match"].map(has);
            assert_eq!(of, [Some(true), Some(false)], "{flavour}");
        }
    });
}

#[test]
fn rules_are_read_as_they_were_written() {
    for flavour in Flavour::ALL {
        in_namespace(|| {
            let rules = vec![
                RuleText::new().comment("a b").jump("RETURN"),
                RuleText::new().ct_state("RELATED,ESTABLISHED").jump("ACCEPT"),
            ];
            let mut changes = Changes::default();
            changes.write_chain(Table::Filter, Chain { name: "X".into(), rules: rules.clone() });
            for programs in tools(flavour).iter() {
                assert_eq!(
                    programs.restore(&changes.to_text()).expect("rules").waited,
                    Duration::ZERO
                );
                let dump = programs.save().expect("a dump");
                assert_eq!(dump.chain(Table::Filter, "X"), Some(rules.as_slice()));
                assert_eq!(dump.rule_count(), 2);
            }
        });
    }
}

/// Returns programs of the nft flavour for IPv4 whose first two runs of `iptables-save` run
/// `change`, and then fail as they do when an ipset of a rule that they have read is no more.
fn failing_twice(directory: &Path, change: &str) -> Programs {
    for (name, begin) in [
        ("iptables-nft", String::new()),
        ("iptables-nft-restore", String::new()),
        (
            "iptables-nft-save",
            format!(
                "echo >>$0.runs; [ $(wc -l <$0.runs) -gt 2 ] || {{ {change}; \
                 echo \"Set with index 35 in kernel doesn't exist.\" >&2; exit 1; }}\n"
            ),
        ),
    ] {
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{begin}exec /usr/sbin/{name} \"$@\"\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let options = ProgramOptions { directory: Some(directory.to_owned()), ..options() };
    InstalledPrograms::find(&options)
        .get(Flavour::Nft, IpFamily::V4)
        .expect("they are there")
        .clone()
}

fn runs(directory: &Path) -> usize {
    fs::read_to_string(directory.join("iptables-nft-save.runs")).unwrap().lines().count()
}

#[test]
fn a_reading_that_a_change_disturbs_is_repeated() {
    in_namespace(|| {
        let directory = TempDir::new().unwrap();
        let programs = failing_twice(directory.path(), "/usr/sbin/iptables-nft -A INPUT -j ACCEPT");
        assert_eq!(programs.save().expect("a dump").rule_count(), 2);
        assert_eq!(runs(directory.path()), 3);
    });
}

#[test]
fn a_reading_that_fails_without_a_change_is_not_repeated() {
    in_namespace(|| {
        let directory = TempDir::new().unwrap();
        let error = failing_twice(directory.path(), "true").save().unwrap_err();
        assert!(
            matches!(&error, ToolError::Failed { message, .. }
            if message == "Set with index 35 in kernel doesn't exist."),
            "{error}"
        );
        assert_eq!(runs(directory.path()), 1);
    });
}

#[test]
fn a_refused_line_is_named() {
    for flavour in Flavour::ALL {
        in_namespace(|| {
            let tools = tools(flavour);
            let programs = tools.iter().next().expect("IPv4");
            let error = programs.restore("*filter\n-A NOWHERE -j ACCEPT\nCOMMIT\n").unwrap_err();
            assert!(matches!(error, ToolError::Refused { .. }), "{error}");
        });
    }
}
