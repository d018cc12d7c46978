//! Sets of the kernel, in a network namespace. Needs root, and the programs `ipset` and `iptables`.

use std::{
    thread,
    time::{Duration, Instant},
};

use switchyard_netlink::ipset::{DestroyError, IpSets, LONGEST_NAME, SetSpec, SetType};
use test_netns::{in_namespace, run};

fn spec(name: &str, kind: SetType, is_v6: bool) -> SetSpec {
    SetSpec { name: name.to_owned(), kind, is_v6, max_elements: 65_536 }
}

/// The sets of kube-proxy, and how the program creates them.
fn sets_of_kube_proxy() -> Vec<(SetSpec, String)> {
    let hash =
        [SetType::HashIp, SetType::HashIpPort, SetType::HashIpPortIp, SetType::HashIpPortNet];
    let mut sets = Vec::new();
    for kind in hash {
        for (is_v6, family) in [(false, "inet"), (true, "inet6")] {
            let name = format!("KUBE-{family}-{}", kind.as_str());
            let options = "hashsize 1024 maxelem 65536 -exist";
            let line = format!("ipset create {name} {} family {family} {options}", kind.as_str());
            sets.push((spec(&name, kind, is_v6), line));
        }
    }
    let line = "ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535 -exist".to_owned();
    sets.push((spec("KUBE-NODE-PORT-TCP", SetType::BitmapPort, false), line));
    sets
}

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
fn many_sets_are_listed() {
    in_namespace(|| {
        // More than one datagram of a dump.
        let count = 1500;
        let mut sets = IpSets::open().unwrap();
        for i in 0..count {
            let name = format!("many-sets-with-long-names-{i}");
            sets.create(&spec(&name, SetType::HashIp, false)).unwrap();
        }
        assert_eq!(names(&mut sets).len(), count);
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

#[test]
fn sets_are_those_that_the_program_makes() {
    // What the program lists of a set, but for revision and memory, which differ between kernels
    // and programs.
    let described = || {
        let listed = run("ipset list");
        let varies =
            |line: &str| ["Revision:", "Size in memory:"].iter().any(|word| line.starts_with(word));
        let lines = listed.lines().filter(|line| !varies(line));
        // Since 7.12, sets of the program have a random number each.
        let lines = lines.map(|line| match line.find(" bucketsize ") {
            Some(end) => line[..end].to_owned(),
            None => line.to_owned(),
        });
        lines.collect::<Vec<_>>()
    };
    let theirs = in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for (ours, line) in sets_of_kube_proxy() {
            run(&line);
            assert_eq!(sets.describe(&ours.name).unwrap(), Some(ours.clone()));
            // Over theirs.
            sets.create(&ours).unwrap();
        }
        described()
    });
    let ours = in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for (ours, line) in sets_of_kube_proxy() {
            assert_eq!(sets.describe(&ours.name).unwrap(), None);
            sets.create(&ours).unwrap();
            assert_eq!(sets.describe(&ours.name).unwrap(), Some(ours.clone()));
            sets.create(&ours).unwrap();
            // Over ours.
            run(&line);
        }
        described()
    });
    assert_eq!(ours, theirs);
    assert!(
        ours.contains(&"Header: family inet6 hashsize 1024 maxelem 65536".to_owned()),
        "{ours:?}"
    );
}

#[test]
fn a_name_of_another_set_is_not_taken() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let spec = spec("A", SetType::HashIpPort, false);
        for other in [
            "A hash:ip",
            "A hash:net",
            "A bitmap:port range 0-65535",
            "A hash:ip,port family inet6",
            "A hash:ip,port maxelem 99",
            "A hash:ip,port timeout 60",
        ] {
            run(&format!("ipset create {other}"));
            let error = sets.create(&spec).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EEXIST), "{other}");
            assert!(sets.destroy("A").unwrap());
        }
        // Of ports, fewer are another set.
        run("ipset create A bitmap:port range 30000-32767");
        let ports = SetSpec { kind: SetType::BitmapPort, ..spec };
        assert_eq!(sets.create(&ports).unwrap_err().errno(), Some(libc::EEXIST));
        let fewer = SetSpec { max_elements: 2768, ..ports };
        assert_eq!(sets.describe("A").unwrap(), Some(fewer));
        run("ipset create B hash:net");
        let error = sets.describe("B").unwrap_err();
        let expected = "an answer of the kernel cannot be understood: a set of another type";
        assert_eq!(error.to_string(), expected);
    });
}

#[test]
fn names_that_are_too_long_are_refused() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        let too_long = "N".repeat(LONGEST_NAME + 1);
        sets.create(&spec(&too_long, SetType::HashIp, false)).unwrap_err();
        assert_eq!(sets.describe(&too_long).unwrap(), None);
        assert_eq!(names(&mut sets), [""; 0]);
    });
}

#[test]
fn sets_are_flushed_and_swapped() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        for name in ["A", "B"] {
            sets.create(&spec(name, SetType::HashIp, false)).unwrap();
        }
        sets.create(&spec("6", SetType::HashIp, true)).unwrap();
        run("ipset add A 192.0.2.1");
        run("iptables-legacy -w -A INPUT -m set --match-set A src -j ACCEPT");
        sets.swap("A", "B").unwrap();
        let entries = |sets: &mut IpSets, name: &str| sets.entries(name).unwrap().unwrap().len();
        assert_eq!((entries(&mut sets, "A"), entries(&mut sets, "B")), (0, 1));
        // The rule still uses the set of this name.
        assert!(matches!(sets.destroy("A"), Err(DestroyError::InUse)));
        assert!(sets.flush("B").unwrap());
        assert_eq!((entries(&mut sets, "A"), entries(&mut sets, "B")), (0, 0));
        assert!(!sets.flush("no-such").unwrap());
        for (a, b, errno, text) in [
            ("no-such", "A", libc::ENOENT, "No such file or directory (there is no such set)"),
            ("A", "no-such", 4101, "Unknown error 4101 (the second set does not exist)"),
            ("A", "6", 4102, "Unknown error 4102 (the sets are of different types)"),
        ] {
            let error = sets.swap(a, b).unwrap_err();
            assert_eq!((error.errno(), error.to_string().as_str()), (Some(errno), text));
        }
    });
}
