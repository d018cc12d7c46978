//! A rule that has marked packets delivered to the host, in a network namespace.

use switchyard_kernel::route::LocalDelivery;
use switchyard_model::IpFamily;
use test_netns::{in_namespace, run};

#[test]
fn the_rule_is_there_once_until_it_is_removed() {
    in_namespace(|| {
        run("ip link set lo up");
        let delivery = LocalDelivery { mark: 0x2000, mask: 0xffff, table: 83, priority: 84 };
        for (family, option) in [(IpFamily::V4, "-4"), (IpFamily::V6, "-6")] {
            let rules = || run(&format!("ip {option} rule show pref 84"));
            let routes = || run(&format!("ip {option} route show table all"));
            let has_route =
                || routes().lines().any(|line| line.contains("local default dev lo table 83"));
            delivery.remove(family).unwrap();
            for _ in 0..2 {
                delivery.ensure(family).unwrap();
                assert_eq!(rules().lines().count(), 1, "{}", rules());
                assert!(rules().contains("fwmark 0x2000/0xffff lookup 83"), "{}", rules());
                assert!(has_route(), "{}", routes());
            }
            delivery.remove(family).unwrap();
            assert_eq!(rules(), "");
            assert!(!has_route(), "{}", routes());
        }
    });
}
