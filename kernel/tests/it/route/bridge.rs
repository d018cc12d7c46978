//! The bridges of a namespace. Needs root, and the program `ip`.

use switchyard_kernel::route::bridges_of_veths;
use test_netns::{in_namespace, run, try_run};

#[test]
fn bridges_of_veths_are_found() {
    let names = || -> Vec<(String, bool)> {
        let bridges = bridges_of_veths().unwrap().into_iter();
        bridges.map(|bridge| (bridge.name, bridge.calls_iptables)).collect()
    };
    in_namespace(|| {
        run("ip link add uplink type bridge");
        run("ip link add cni0 type bridge");
        run("ip link add pod type veth peer name inside");
        assert_eq!(names(), [], "no bridge has a port");
        // The port of a bridge may be no container's. Kernels differ in the types that they have.
        let is_made = |kind: &&str| try_run(&format!("ip link add port type {kind}")).is_ok();
        if ["dummy", "ifb"].iter().any(is_made) {
            run("ip link set port master uplink");
            assert_eq!(names(), []);
        }
        run("ip link set pod master cni0");
        assert_eq!(names(), [("cni0".to_owned(), false)]);
        run("ip link set cni0 type bridge nf_call_iptables 1");
        assert_eq!(names(), [("cni0".to_owned(), true)]);
    });
}
