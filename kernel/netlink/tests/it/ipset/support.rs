//! The kernel's support of IP sets. Needs root.

use std::process::Command;

use switchyard_netlink::ipset::{IpSets, SetSpec, SetType};
use test_netns::in_namespace;

#[test]
fn types_that_the_kernel_has_can_be_created() {
    in_namespace(|| {
        let mut sets = IpSets::open().unwrap();
        assert!(sets.is_available().unwrap());
        for (index, kind) in SetType::ALL.into_iter().enumerate() {
            for is_v6 in [false, true] {
                assert!(sets.has_type(kind, is_v6).unwrap(), "{kind:?}, IPv6: {is_v6}");
            }
            assert_eq!(sets.names().unwrap().len(), index, "nothing was created");
            let (name, max_elements) = (format!("S{index}"), 65_536);
            sets.create(&SetSpec { name, kind, is_v6: false, max_elements }).unwrap();
        }
    });
}

#[test]
fn modules_are_named_as_the_kernel_names_them() {
    assert_eq!(SetType::HashIpPortNet.module(), "ip_set_hash_ipportnet");
    assert_eq!(SetType::BitmapPort.module(), "ip_set_bitmap_port");
    for kind in SetType::ALL {
        // Where the types are modules at all, and not built in.
        let found = Command::new("modinfo").args(["-F", "alias", &kind.module()]).output();
        let Ok(output) = found else { continue };
        let alias = format!("ip_set_{}", kind.as_str());
        let aliases = String::from_utf8(output.stdout).unwrap();
        assert!(!output.status.success() || aliases.contains(&alias), "{kind:?}: {aliases}");
    }
}
