//! The types of interfaces that the kernel can make. Needs root, and the program `ip`.

use std::fs;

use switchyard_kernel::route::has_link_type;
use test_netns::{in_namespace, run, try_run};

fn interfaces() -> Vec<String> {
    let listed = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    listed.lines().skip(2).map(|line| line.split(':').next().unwrap().trim().to_owned()).collect()
}

/// Whether the program `ip` can make an interface of the type.
fn can_be_made(kind: &str) -> bool {
    let is_made = try_run(&format!("ip link add x type {kind}")).is_ok();
    if is_made {
        run("ip link delete x");
    }
    is_made
}

#[test]
fn types_are_known_without_making_interfaces() {
    in_namespace(|| {
        let before = interfaces();
        for kind in ["veth", "bridge", "dummy", "no-such-type"] {
            let found = has_link_type(kind).unwrap();
            assert_eq!(interfaces(), before, "{kind}");
            assert_eq!(found, can_be_made(kind), "{kind}");
        }
        // The packet tests need it, so that one answer at least is yes.
        assert!(has_link_type("veth").unwrap());
    });
}
