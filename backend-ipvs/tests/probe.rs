//! The probe, on the kernel that is there. Needs root, and the programs of iptables.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::{path::Path, process::Command};

use switchyard_core::{
    error::ErrorChain,
    model::PerFamily,
    proxier::{Backend, Probed, ProxierError},
};
use switchyard_ipvs::{IpvsBackend, IpvsConfig};
use test_netns::{forbid_modules, in_namespace};

/// Whether the kernel has IPVS now.
fn has_ipvs() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

/// Probes without loading the module of IPVS, which would stay.
fn probe(families: PerFamily<bool>) -> Result<Probed, ProxierError> {
    forbid_modules();
    let mut config = IpvsConfig::default();
    config.families = families;
    IpvsBackend::new(config).probe()
}

#[test]
fn a_kernel_with_ipvs_is_enough_and_one_without_is_the_reason() {
    let v4 = PerFamily { v4: true, v6: false };
    for families in [PerFamily { v4: true, v6: true }, v4] {
        in_namespace(|| match (probe(families), has_ipvs()) {
            (Ok(probed), true) => assert_eq!(probed.families, families),
            (Err(error), false) => {
                assert!(matches!(error, ProxierError::Unusable { is_node: true, .. }), "{error:?}");
                let text = ErrorChain(&error).to_string();
                assert!(text.ends_with("the kernel module ip_vs is missing"), "{text}");
            }
            (found, has_ipvs) => panic!("IPVS: {has_ipvs}, but {found:?}"),
        });
    }
}

#[test]
fn nothing_is_created() {
    in_namespace(|| {
        let output = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let devices = output("ip", &["-brief", "link"]);
        let servers = || std::fs::read_to_string("/proc/net/ip_vs").unwrap_or_default();
        let before = servers();
        let _ = probe(PerFamily { v4: true, v6: true });
        assert_eq!(output("ip", &["-brief", "link"]), devices);
        assert_eq!(output("ipset", &["list", "-n"]), "");
        assert_eq!(servers(), before);
    });
}
