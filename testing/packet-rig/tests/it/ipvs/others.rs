//! Virtual servers of other programs.

use std::net::IpAddr;

use packet_rig::Rig;
use switchyard_kernel::ipvs::{Batch, Ipvs, RealServer, Selector, VirtualServer};

use super::{C, servers, start, wait, web, weights};

fn selector(ip: [u8; 4]) -> Selector {
    Selector::Address { protocol: 6, ip: IpAddr::from(ip), port: 80 }
}

/// Gives commands to IPVS on the node, as `ipvsadm` does.
fn command(rig: &Rig, fill: impl Fn(&mut Batch) + Send + Sync) {
    let refused = rig.topology.node().namespace.run(|| {
        let mut batch = Batch::default();
        fill(&mut batch);
        Ipvs::open().unwrap().unwrap().commit(&batch).unwrap()
    });
    assert_eq!(refused.unwrap(), []);
}

fn real(ip: [u8; 4], weight: u32) -> RealServer {
    RealServer { address: (ip, 8080).into(), weight, active: 0, inactive: 0, is_masquerading: true }
}

fn server(ip: [u8; 4]) -> VirtualServer {
    VirtualServer {
        selector: selector(ip),
        scheduler: "rr".into(),
        flags: 0,
        timeout: 0,
        netmask: u32::MAX,
    }
}

/// Virtual servers in `ipvs.excludeCIDRs`, and those that serve marks, belong to other programs.
#[test]
fn excluded_networks_are_left_alone() {
    let config = "ipvs: {excludeCIDRs: [10.99.0.0/16], syncPeriod: 1s}";
    let Some(rig) = start("excluded", &web("", "", &[C]), config) else { return };
    let mark = Selector::Mark { family: libc::AF_INET as u16, mark: 7 };
    command(&rig, |batch| {
        batch.add_server(&server([10, 99, 0, 1]));
        batch.add_real(&selector([10, 99, 0, 1]), &real([10, 244, 9, 9], 5));
        batch.add_server(&server([10, 98, 0, 1]));
        batch.add_server(&VirtualServer { selector: mark, ..server([0; 4]) });
    });
    wait(&rig, "the one outside goes", || servers(&rig).len() == 3);
    let left: Vec<String> = servers(&rig).into_iter().map(|server| server.at).collect();
    assert!(left.contains(&"TCP 0A630001:0050".to_owned()), "{left:?}");
    assert_eq!(weights(&rig, "TCP 0A630001:0050"), [5]);
    assert!(left.iter().any(|at| at.starts_with("FWM")), "{left:?}");
}
