//! A device that holds addresses, in a network namespace. Needs root, and the program `ip`. Where
//! the kernel has no dummy devices, a bridge stands for one where the type does not matter.

use std::{
    collections::BTreeSet,
    error::Error,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    thread,
    time::Duration,
};

use switchyard_kernel::route::{DeviceError, DummyDevice};
use test_netns::{in_namespace, run, skipped, try_run, wait};

const NAME: &str = "kube-ipvs0";

/// Whether the kernel has dummy devices.
fn has_dummies() -> bool {
    let has = try_run("ip link add probe type dummy").is_ok();
    if has {
        run("ip link del probe");
    }
    has
}

/// Runs a test with the device: a dummy device, or a bridge where the kernel has no dummy devices.
fn with_device(test: impl FnOnce(DummyDevice) + Send) {
    in_namespace(|| {
        let mut device = DummyDevice::open(NAME).unwrap();
        if has_dummies() {
            assert!(device.ensure().unwrap());
        } else {
            run("ip link add kube-ipvs0 type bridge");
        }
        test(device);
    });
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
    addresses(texts).into_iter().collect()
}

#[test]
fn a_dummy_device_is_made_once_and_stays_down() {
    in_namespace(|| {
        let mut device = DummyDevice::open(NAME).unwrap();
        assert!(!device.exists().unwrap());
        assert!(!device.delete().unwrap());
        assert_eq!(device.addresses().unwrap(), set(&[]));
        let error = device.change(&addresses(&["192.0.2.1"]), &[]).unwrap_err();
        assert_eq!(error.to_string(), "there is no device kube-ipvs0");
        if !has_dummies() {
            let error = device.ensure().unwrap_err();
            assert!(error.to_string().starts_with("cannot make the device"), "{error}");
            return skipped("no dummy devices in this kernel");
        }
        for made in [true, false, false] {
            assert_eq!(device.ensure().unwrap(), made);
        }
        let shown = run("ip -details link show kube-ipvs0");
        assert!(shown.contains("dummy") && shown.contains("state DOWN"), "{shown}");
        // One that another program made.
        assert!(device.delete().unwrap());
        run("ip link add kube-ipvs0 type dummy");
        assert!(!device.ensure().unwrap());
        assert!(device.exists().unwrap());
        assert!(device.delete().unwrap());
        assert!(!device.exists().unwrap());
    });
}

#[test]
fn a_bridge_does_where_there_are_no_dummy_devices() {
    in_namespace(|| {
        let mut device = DummyDevice::open(NAME).unwrap().or_bridge();
        assert!(device.ensure().unwrap() && !device.ensure().unwrap());
        let shown = run("ip -details link show kube-ipvs0");
        let kind = if has_dummies() { "dummy" } else { "bridge" };
        assert!(shown.contains(kind) && shown.contains("state DOWN"), "{shown}");
        assert!(device.delete().unwrap());
        run("ip link add kube-ipvs0 type bridge");
        assert!(!device.ensure().unwrap(), "what is there will do");
        run("ip link del kube-ipvs0");
        run("ip link add kube-ipvs0 type veth peer name other");
        let error = device.ensure().unwrap_err().to_string();
        assert!(
            error.ends_with("type veth, where one of the type dummy or bridge is needed"),
            "{error}"
        );
    });
}

#[test]
fn a_device_of_another_type_is_refused_but_can_be_deleted() {
    in_namespace(|| {
        let mut device = DummyDevice::open(NAME).unwrap();
        run("ip link add kube-ipvs0 type bridge");
        let error = device.ensure().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the device kube-ipvs0 is of the type bridge, where one of the type dummy is needed"
        );
        assert!(device.exists().unwrap());
        assert!(device.delete().unwrap());
        assert!(!device.exists().unwrap());
        let mut loopback = DummyDevice::open("lo").unwrap();
        let error = loopback.ensure().unwrap_err();
        assert!(matches!(error, DeviceError::OtherType { .. }), "{error}");
    });
}

#[test]
fn a_device_of_another_program_is_not_deleted_as_ones_own() {
    in_namespace(|| {
        let mut device = DummyDevice::open(NAME).unwrap().or_bridge().with_alias("ours");
        assert!(!device.delete_own().unwrap(), "there is none");
        assert!(device.ensure().unwrap());
        assert!(run("ip link show kube-ipvs0").contains("alias ours"));
        assert!(!device.delete_own().unwrap());
        assert!(!device.exists().unwrap());
        // Without the alias; one that is used gets it.
        run("ip link add kube-ipvs0 type bridge");
        assert!(device.delete_own().unwrap() && device.exists().unwrap());
        assert!(!device.ensure().unwrap());
        assert!(!device.delete_own().unwrap() && !device.exists().unwrap());
        // Of another type.
        run("ip link add kube-ipvs0 type veth peer name other");
        run("ip link set kube-ipvs0 alias ours");
        assert!(device.delete_own().unwrap() && device.exists().unwrap());
    });
}

#[test]
fn addresses_of_a_device_that_is_down_are_the_nodes() {
    with_device(|mut device| {
        run("ip link set lo up");
        let both = ["192.0.2.1", "2001:db8::1"];
        for address in addresses(&both) {
            UdpSocket::bind((address, 0)).unwrap_err();
        }
        device.change(&addresses(&both), &[]).unwrap();
        assert_eq!(device.await_local(&addresses(&both), wait::PATIENCE).unwrap(), addresses(&[]));
        for address in addresses(&both) {
            UdpSocket::bind((address, 0)).unwrap();
            let local = format!("local {address} ");
            assert!(run(&format!("ip route get {address}")).starts_with(&local));
        }
        // The kernel may make a route at any time later.
        run("ip -6 route del local 2001:db8::1 table local");
        let left = |device: &mut DummyDevice, patience| {
            device.await_local(&addresses(&both), patience).unwrap()
        };
        assert_eq!(left(&mut device, Duration::ZERO), addresses(&["2001:db8::1"]));
        thread::scope(|scope| {
            scope.spawn(|| run("ip -6 route add local 2001:db8::1 dev lo table local"));
            assert_eq!(left(&mut device, wait::PATIENCE), addresses(&[]));
        });
        let shown = run("ip -brief address show kube-ipvs0");
        assert!(shown.contains("DOWN"), "{shown}");
        assert!(shown.contains("192.0.2.1/32 2001:db8::1/128"), "{shown}");
        assert!(!run("ip address show kube-ipvs0").contains("tentative"));
        device.change(&[], &addresses(&both)).unwrap();
        for address in addresses(&both) {
            UdpSocket::bind((address, 0)).unwrap_err();
        }
    });
}

#[test]
fn addresses_are_listed_by_device() {
    with_device(|mut device| {
        run("ip link set lo up");
        run("ip link add name veth0 type veth peer name veth1");
        run("ip link set veth0 up");
        run("ip link set veth1 up");
        run("ip address add 198.51.100.1/24 dev veth0");
        run("ip address add 2001:db8:1::1/64 dev veth0");
        // The other end's address is not ours.
        run("ip address add 198.51.100.3 peer 198.51.100.4 dev veth1");
        device.change(&addresses(&["192.0.2.1", "2001:db8::1"]), &[]).unwrap();
        // What others add, and what the kernel adds as the device is up.
        run("ip address add 192.0.2.9/24 dev kube-ipvs0");
        run("ip address add fe80::7/64 dev kube-ipvs0");
        let ours = set(&["192.0.2.1", "192.0.2.9", "2001:db8::1"]);
        assert_eq!(device.addresses().unwrap(), ours);
        let others = device.others().unwrap();
        let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        assert!(others.iter().any(link_local));
        let others: BTreeSet<_> = others.into_iter().filter(|ip| !link_local(ip)).collect();
        let expected = ["127.0.0.1", "::1", "198.51.100.1", "198.51.100.3", "2001:db8:1::1"];
        assert_eq!(others, set(&expected));
        // Without the device, all are others.
        assert!(device.delete().unwrap());
        assert_eq!(device.addresses().unwrap(), set(&[]));
        let others = device.others().unwrap();
        assert_eq!(others.into_iter().filter(|ip| !link_local(ip)).count(), expected.len());
    });
}

#[test]
fn what_is_there_or_gone_already_is_no_error() {
    with_device(|mut device| {
        let some = addresses(&["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"]);
        for _ in 0..2 {
            device.change(&some, &[]).unwrap();
            assert_eq!(device.addresses().unwrap(), some.iter().copied().collect());
        }
        let more = addresses(&["192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3"]);
        for _ in 0..2 {
            device.change(&more, &addresses(&["192.0.2.1", "2001:db8::1", "192.0.2.99"])).unwrap();
            assert_eq!(device.addresses().unwrap(), more.iter().copied().collect());
        }
        // Also with the network of another program.
        run("ip address add 203.0.113.1/24 dev kube-ipvs0");
        run("ip address add 2001:db8:1::1/64 dev kube-ipvs0");
        device.change(&[], &addresses(&["203.0.113.1", "2001:db8:1::1"])).unwrap();
        assert_eq!(device.addresses().unwrap(), more.into_iter().collect());
    });
}

#[test]
fn an_address_that_is_refused_is_named_and_the_rest_is_done() {
    with_device(|mut device| {
        let add = addresses(&["192.0.2.1", "2001:db8::1", "ff02::1", "192.0.2.2"]);
        let error = device.change(&add, &[]).unwrap_err();
        assert_eq!(error.to_string(), "cannot add an address to the device kube-ipvs0: ff02::1");
        assert!(error.source().is_some());
        assert_eq!(device.addresses().unwrap(), set(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]));
        let refused =
            device.change_each(&addresses(&["ff02::1", "192.0.2.3", "ff02::2"]), &[]).unwrap();
        let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
        assert!(refused[0].ends_with("ff02::1") && refused[1].ends_with("ff02::2"), "{refused:?}");
        assert!(device.addresses().unwrap().contains(&addresses(&["192.0.2.3"])[0]));
    });
}

#[test]
fn a_value_is_of_the_namespace_in_which_it_was_opened() {
    with_device(|mut device| {
        in_namespace(|| {
            assert!(!DummyDevice::open(NAME).unwrap().exists().unwrap());
            assert!(device.exists().unwrap());
        });
    });
}

/// More than is sent at once, and more than one datagram of a list.
#[test]
fn many_addresses() {
    with_device(|mut device| {
        let v4 = (0..1500).map(|i| Ipv4Addr::from(0x0a60_0000 + i).into());
        let v6 = (0..1500).map(|i| Ipv6Addr::from(0xfd00_u128 << 112 | i).into());
        let many: Vec<IpAddr> = v4.chain(v6).collect();
        device.change(&many, &[]).unwrap();
        assert_eq!(device.addresses().unwrap(), many.iter().copied().collect());
        assert_eq!(device.others().unwrap(), set(&[]));
        run("ip link set lo up");
        assert_eq!(device.await_local(&many, wait::PATIENCE).unwrap(), addresses(&[]));
        for gone in ["fd00::17", "fd00::18"] {
            run(&format!("ip -6 route del local {gone} table local"));
        }
        let left = device.await_local(&many, Duration::from_millis(1)).unwrap();
        assert_eq!(left, addresses(&["fd00::17", "fd00::18"]));
        device.change(&many[..1], &many[1..]).unwrap();
        assert_eq!(device.addresses().unwrap(), many[..1].iter().copied().collect());
    });
}
