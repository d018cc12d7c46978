//! Each backend of the tests is what its name promises.

use packet_rig::{Case, Rig, backend, http, proxy::METRICS};

const NODE_ALONE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n";

#[test]
fn backends_have_the_mode_of_their_names() {
    let _calm = crate::stay_calm();
    for backend in crate::backends() {
        let case = Case { name: "backend".into(), manifests: NODE_ALONE.into(), ..Case::default() };
        let rig = Rig::start(&case, backend).unwrap();
        let node = &rig.topology.node().namespace;
        let get = |path| http::get(node, METRICS.parse().unwrap(), path).unwrap().body;
        assert_eq!(get("/proxyMode"), backend::mode(backend));
        if backend == "nftables-json" {
            let version = node.output("nft", &["--version"], "").unwrap();
            assert!(version.starts_with("nftables v1.1."), "{version}");
        }
    }
}
