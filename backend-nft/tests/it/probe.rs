//! The probe, on this kernel.

use switchyard_core::model::PerFamily;
use switchyard_kernel::nftables::TransportKind;
use switchyard_nft::probe;

use crate::common::{Owner, in_namespace, nft};

#[test]
fn this_kernel_can_and_nothing_is_done() {
    in_namespace(|| {
        let _owner = Owner::of("add table ip6 kube-proxy { flags owner; }");
        for before in [
            "",
            "add table ip kube-proxy\nadd chain ip kube-proxy services\n",
            "add table ip kube-proxy { flags dormant; }",
        ] {
            nft(before);
            let listed = nft("list ruleset");
            for kind in [TransportKind::Netlink, TransportKind::Json] {
                let probed = probe(kind, &PerFamily { v4: true, v6: true }, false);
                match kind.open() {
                    Ok(_) => probed.unwrap(),
                    // The program here may be too old.
                    Err(error) => {
                        assert_eq!(probed.unwrap_err().to_string(), error.to_string());
                    }
                }
            }
            assert_eq!(nft("list ruleset"), listed);
        }
    });
}
