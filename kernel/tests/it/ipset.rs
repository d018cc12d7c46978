//! Sets of the kernel, in a network namespace. Needs root, and the programs `ipset` and `iptables`.

use std::{
    thread,
    time::{Duration, Instant},
};

use switchyard_kernel::ipset::{DestroyError, IpSets, LONGEST_NAME};
use test_netns::{in_namespace, run};

fn names(sets: &mut IpSets) -> Vec<String> {
    let mut names = sets.names().unwrap();
    names.sort();
    names
}

#[test]
fn a_namespace_without_sets_has_no_names() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        assert_eq!(names(&mut sets), [""; 0]);
        assert!(!sets.destroy("A").unwrap());
        let error = sets.destroy(&"N".repeat(70_000)).unwrap_err();
        assert!(matches!(error, DestroyError::Netlink(_)), "{error}");
    });
}

#[test]
fn sets_of_all_types_are_listed_and_destroyed() {
    in_namespace(|| {
        let long = "N".repeat(LONGEST_NAME);
        for set in [
            "A hash:ip,port",
            "B hash:ip,port,ip family inet6",
            "C hash:ip,port,net",
            "D bitmap:port range 0-65535",
            "E hash:ip",
            &format!("{long} hash:ip"),
        ] {
            run(&format!("ipset create {set}"));
        }
        run("ipset add A 192.0.2.1,tcp:80");
        let mut sets = IpSets::open().unwrap();
        assert_eq!(names(&mut sets), ["A", "B", "C", "D", "E", &long]);
        for name in ["A", "C", &long] {
            assert!(sets.destroy(name).unwrap());
            assert!(!sets.destroy(name).unwrap(), "a second time");
        }
        assert_eq!(names(&mut sets), ["B", "D", "E"]);
    });
}

#[test]
fn a_set_that_a_rule_uses_stays() {
    for flavour in ["legacy", "nft"] {
        in_namespace(|| {
            run("ipset create A hash:ip");
            run(&format!("iptables-{flavour} -w -A INPUT -m set --match-set A src -j ACCEPT"));
            let mut sets = IpSets::open().unwrap();
            let error = sets.destroy("A").unwrap_err();
            assert!(matches!(error, DestroyError::InUse), "{error}");
            assert_eq!(names(&mut sets), ["A"]);
            run(&format!("iptables-{flavour} -w -F INPUT"));
            // nf_tables lets go of the set a moment later.
            let deadline = Instant::now() + Duration::from_secs(10);
            while matches!(sets.destroy("A"), Err(DestroyError::InUse)) {
                assert!(Instant::now() < deadline, "{flavour}: still in use");
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(names(&mut sets), [""; 0]);
        });
    }
}
