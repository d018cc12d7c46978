//! The backend and its host: the lock, and programs that hang.

use std::{
    error::Error,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use switchyard_core::{
    model::PerFamily,
    proxier::Backend,
    testing::{sync_first, web, web_slice},
};
use switchyard_iptables::{
    Flavour, IptablesBackend, IptablesConfig, IptablesProxier, ProgramOptions, TimeLimits,
};
use test_netns::wait::PATIENCE;

use crate::common::{Tables, config, in_namespace, iptables_config, proxier, start};

/// The families that this node can program.
fn families(config: &IptablesConfig) -> PerFamily<bool> {
    IptablesBackend::new(config.clone()).probe().expect("this node can").families
}

/// Beneath ipvs mode, the rules are asked for what comes to the node, too.
#[test]
fn jumps_of_rules_beneath_ipvs_mode_go() {
    in_namespace(|| {
        let jumps = || Tables::v4(Flavour::Nft).save().matches("-A INPUT").count();
        let mut plain = start(Flavour::Nft, config());
        plain.sync(web());
        let wanted = jumps();
        let mut config_beneath = iptables_config(Flavour::Nft);
        config_beneath.beneath_ipvs = true;
        let beneath = IptablesProxier::new(config_beneath).expect("installed");
        plain.restart(beneath);
        assert_eq!(jumps(), wanted + 2);
        plain.restart(proxier(Flavour::Nft));
        assert_eq!(jumps(), wanted, "{}", Tables::v4(Flavour::Nft).save());
    });
}

fn with_programs(directory: PathBuf) -> IptablesConfig {
    let limits = TimeLimits { tables: Duration::from_millis(500), ..TimeLimits::default() };
    let programs =
        ProgramOptions { directory: Some(directory), limits, ..ProgramOptions::default() };
    let mut made = IptablesConfig::default();
    made.programs = programs;
    made
}

fn install(directory: &tempfile::TempDir, name: &str, script: &str) {
    let path = directory.path().join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
}

/// A node that is slow when the proxy starts has the family nevertheless, which a program that
/// fails shows that it has not.
#[test]
fn a_family_is_kept_whose_program_does_not_end_in_time() {
    in_namespace(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let version = "echo 'iptables v1.8.9 (nf_tables)'";
        for (base, otherwise) in [("iptables", "exit 1"), ("ip6tables", "sleep 600")] {
            let script = format!("[ $1 = --version ] || {otherwise}\n{version}");
            install(&directory, base, &script);
            install(&directory, &format!("{base}-save"), "true");
            install(&directory, &format!("{base}-restore"), "true");
        }
        let mut config = with_programs(directory.path().into());
        config.programs.limits.single = Duration::from_secs(3);
        assert_eq!(families(&config), PerFamily { v4: true, v6: true });
        install(&directory, "ip6tables", &format!("[ $1 = --version ] || exit 3\n{version}"));
        assert_eq!(families(&config), PerFamily { v4: true, v6: false });
        for base in ["iptables", "ip6tables"] {
            install(&directory, base, &format!("{version}; rm $0"));
        }
        assert!(IptablesBackend::new(config).probe().is_err(), "no family answers");
    });
}

/// A program that never ends makes the sync fail, and does not hang it.
#[test]
fn a_sync_ends_though_a_program_hangs() {
    in_namespace(|| {
        let directory = tempfile::tempdir().expect("a directory");
        for base in ["iptables", "ip6tables"] {
            install(&directory, base, "echo 'iptables v1.8.9 (nf_tables)'");
            install(&directory, &format!("{base}-save"), "true");
            // The shell waits for a process that holds its output.
            install(&directory, &format!("{base}-restore"), "sleep 600; true");
        }
        let mut proxier =
            IptablesProxier::new(with_programs(directory.path().into())).expect("they are there");
        let begun = Instant::now();
        let state = switchyard_core::state::State::default();
        let error = sync_first(&mut proxier, &state).expect_err("nothing is programmed");
        assert!(begun.elapsed() < PATIENCE);
        let cause = error.source().expect("the limit").to_string();
        assert!(
            cause.contains("iptables-restore was killed as it did not end within 500ms"),
            "{cause}"
        );
        assert!(cause.contains("--noflush"), "{cause}");
    });
}

#[test]
fn a_sync_reports_how_long_it_waited_for_the_lock() {
    in_namespace(|| {
        let mut proxy = start(Flavour::Legacy, config());
        let path = iptables_config(Flavour::Legacy).programs.lock_file.expect("a lock");
        assert_eq!(proxy.sync(web()).waited, Duration::ZERO);

        let held = fs::File::open(&path).expect("the lock");
        held.lock().expect("no program has it");
        let is_free = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(400));
                is_free.store(true, Ordering::SeqCst);
                drop(held);
            });
            let report = proxy.sync([web_slice(&[2])]);
            assert!(is_free.load(Ordering::SeqCst), "the sync waited");
            report
        });
        assert!(report.waited > Duration::ZERO && report.waited < PATIENCE, "{report:?}");
    });
}
