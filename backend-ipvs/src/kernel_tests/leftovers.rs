//! Clean-up beside the virtual servers of other programs.

use switchyard_core::proxier::Backend;
use switchyard_kernel::ipvs::{Batch, Ipvs, Selector, VirtualServer};

use super::on_ipvs;
use crate::{IpvsBackend, IpvsConfig, probe};

#[test]
fn virtual_servers_of_others_stay() {
    on_ipvs!(probe::is_loaded().then_some(()));
    test_netns::in_namespace(|| {
        let mut ipvs = Ipvs::open().unwrap().unwrap();
        let selectors = [[10, 96, 0, 1], [192, 0, 2, 1]].map(|ip| Selector::Address {
            protocol: 6,
            ip: ip.into(),
            port: 80,
        });
        let mut batch = Batch::default();
        for selector in selectors {
            let scheduler = "rr".to_owned();
            let (flags, timeout, netmask) = (0, 0, u32::MAX);
            batch.add_server(&VirtualServer { selector, scheduler, flags, timeout, netmask });
        }
        assert_eq!(ipvs.commit(&batch).unwrap(), []);
        let excluded = vec!["192.0.2.0/24".parse().unwrap()];
        let backend = IpvsBackend::new(IpvsConfig { excluded, ..IpvsConfig::default() });
        // A set may stay after the virtual servers of ipvs mode, and these be another program's.
        test_netns::run("ipset create KUBE-CLUSTER-IP hash:ip,port");
        backend.clean_up(None).unwrap();
        assert_eq!(ipvs.virtual_servers().unwrap().len(), selectors.len());
        test_netns::run("ip link add kube-ipvs0 type dummy");
        backend.clean_up(None).unwrap();
        let dump = backend.dump(1 << 20).pop().unwrap();
        assert_eq!(
            dump.text.as_deref(),
            Some("-A -t 192.0.2.1:80 -s rr # flags 0x0\n"),
            "{dump:?}"
        );
        let left: Vec<Selector> =
            ipvs.virtual_servers().unwrap().into_iter().map(|server| server.selector).collect();
        assert_eq!(left, selectors[1..]);
    });
}
