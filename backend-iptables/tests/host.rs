//! How the backend gets along with the host: which flavour it picks, how it waits for the lock,
//! what it says if something is missing.

mod common;

use std::{fs, thread, time::Duration};

use backend_iptables::{Flavour, IptablesConfig, IptablesProxier, probe};
use common::{Tables, config, in_namespace, start};
use proxy_core::testing::{web, web_slice};

fn chosen() -> Flavour {
    IptablesProxier::new(IptablesConfig::default()).expect("iptables is installed").flavour()
}

#[test]
fn the_flavour_is_the_hosts() {
    in_namespace(|| {
        assert_eq!(chosen(), Flavour::Nft, "nobody has any rules");
        let [nft, legacy] = [Flavour::Nft, Flavour::Legacy].map(Tables::v4);
        legacy.restore("*filter\n-A INPUT -j ACCEPT\n-A INPUT -j DROP\nCOMMIT\n");
        assert_eq!(chosen(), Flavour::Legacy, "its rules are more");
        nft.restore("*filter\n-A INPUT -j ACCEPT\n-A INPUT -j DROP\nCOMMIT\n");
        assert_eq!(chosen(), Flavour::Nft, "rules are as many");

        // The kubelet counts more than any number of rules.
        legacy.restore("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n");
        assert_eq!(chosen(), Flavour::Legacy);
        let six = Tables { base: "ip6tables", ..nft };
        six.restore("*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n");
        assert_eq!(chosen(), Flavour::Nft);

        let forced = IptablesConfig { flavour: Some(Flavour::Legacy), ..IptablesConfig::default() };
        assert_eq!(IptablesProxier::new(forced).expect("installed").flavour(), Flavour::Legacy);

        // What we program is itself a reason to stay with it.
        test_netns::enter_new_namespace();
        let mut proxy = start(Flavour::Legacy, config());
        proxy.sync(web());
        assert_eq!(chosen(), Flavour::Legacy);
    });
}

#[test]
fn what_is_missing_is_said() {
    in_namespace(|| {
        for flavour in Flavour::ALL {
            let config = IptablesConfig { flavour: Some(flavour), ..IptablesConfig::default() };
            probe(&config).expect("this machine can");
        }
        let nowhere = tempfile::tempdir().expect("a directory");
        let config = IptablesConfig {
            programs: Some(nowhere.path().to_owned()),
            ..IptablesConfig::default()
        };
        let error = probe(&config).expect_err("nothing is there").to_string();
        assert_eq!(
            error,
            "iptables cannot be used on this node: iptables, iptables-save and iptables-restore, \
             ip6tables, ip6tables-save and ip6tables-restore are not installed"
        );
    });
}

#[test]
fn a_lock_is_waited_for() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    // SAFETY: no other test of this program reads the environment through libc while it runs: they
    // start programs, which std does under its own lock.
    unsafe { std::env::set_var("XTABLES_LOCKFILE", file.path()) };
    let path = file.path().to_owned();
    in_namespace(move || {
        let mut proxy = start(Flavour::Legacy, config());
        proxy.sync(web());
        assert_eq!(proxy.proxier.time_waited(), Duration::ZERO);

        let held = fs::File::open(&path).expect("the lock");
        held.lock().expect("nobody has it");
        let holder = thread::spawn(move || {
            thread::sleep(Duration::from_millis(400));
            drop(held);
        });
        proxy.sync([web_slice(&[2])]);
        holder.join().expect("it only sleeps");
        let waited = proxy.proxier.time_waited();
        assert!((300..2000).contains(&waited.as_millis()), "{waited:?}");
    });
}
