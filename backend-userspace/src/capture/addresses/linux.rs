//! Owned addresses on Linux: those of a device that sends and receives nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use socket2::{Domain, Socket, Type};
use switchyard_core::{error::ErrorChain, proxier::Monitor};
use switchyard_kernel::route::{DeviceError, DummyDevice, SharedAddresses, has_link_type};

use super::{OwnedAddresses, SystemError};
use crate::capture::{DEVICE, monitor::DeviceMonitor};

/// The device, and the addresses that it should have.
struct Device {
    device: DummyDevice,
    bound: SharedAddresses,
}

/// The alias of the device, by which it is known as the proxy's own.
const ALIAS: &str = "switchyard userspace mode";

/// Opens a socket to the kernel.
pub(crate) fn open() -> Result<Box<dyn OwnedAddresses>, SystemError> {
    Ok(Box::new(Device { device: open_device()?, bound: SharedAddresses::default() }))
}

/// Opens the device of userspace mode, which need not exist.
pub(crate) fn open_device() -> Result<DummyDevice, DeviceError> {
    Ok(DummyDevice::open(DEVICE)?.or_bridge().with_alias(ALIAS))
}

/// Finds out whether the kernel can make the device, for this process.
pub(crate) fn probe() -> Result<(), SystemError> {
    for kind in ["dummy", "bridge"] {
        if has_link_type(kind)? {
            return Ok(());
        }
    }
    Err("the kernel has devices of the types dummy and bridge neither".into())
}

/// Finds out whether this process may listen on every port: needs CAP_NET_BIND_SERVICE, unless
/// `net.ipv4.ip_unprivileged_port_start`, which is for both families, allows it.
pub(crate) fn probe_ports() -> Result<(), SystemError> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // The privilege is checked before the port, which another program may have.
    match socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 1)).into()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
            let first = first.unwrap_or_else(|_| "1024".to_owned());
            Err(format!(
                "ports below {} cannot be listened on without CAP_NET_BIND_SERVICE",
                first.trim()
            )
            .into())
        }
        _ => Ok(()),
    }
}

/// Removes the device. One that is not known to be the proxy's own stays.
pub(crate) fn clean_up() -> Result<(), SystemError> {
    if open_device()?.delete_own()? {
        tracing::warn!(
            device = DEVICE,
            "Left a device alone that is not known to be the proxy's own \
             (remove it with: ip link del {DEVICE})"
        );
    }
    Ok(())
}

impl OwnedAddresses for Device {
    fn ensure(&mut self) -> Result<BTreeSet<IpAddr>, SystemError> {
        self.device.ensure()?;
        let there = self.device.addresses()?;
        self.bound.lock().clone_from(&there);
        Ok(there)
    }

    fn others(&mut self) -> Result<BTreeSet<IpAddr>, SystemError> {
        Ok(self.device.others()?)
    }

    fn change(
        &mut self,
        add: &[IpAddr],
        remove: &[IpAddr],
    ) -> Result<BTreeMap<IpAddr, String>, SystemError> {
        let mut bound = self.bound.lock();
        let refused = self.device.change_each(add, remove)?;
        let refused = refused.into_iter().filter_map(|error| match error {
            DeviceError::Address { address, .. } => Some((address, ErrorChain(&error).to_string())),
            _ => None,
        });
        let refused: BTreeMap<IpAddr, String> = refused.collect();
        bound.extend(add.iter().filter(|ip| !refused.contains_key(ip)));
        remove.iter().filter(|ip| !refused.contains_key(ip)).for_each(|ip| {
            bound.remove(ip);
        });
        Ok(refused)
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        Some(Box::new(DeviceMonitor::new(None, &self.bound)))
    }
}

#[cfg(test)]
mod kernel_tests {
    use std::{
        net::Ipv6Addr,
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::Duration,
    };

    use test_netns::{in_namespace, run};
    use tokio::{runtime::Builder, time::timeout};

    use super::*;

    #[test]
    fn a_change_that_is_half_way_is_not_that_of_another_program() {
        in_namespace(|| {
            run("ip link add name other type bridge");
            let mut device = open().unwrap();
            device.ensure().unwrap();
            let mut monitor = device.monitor().unwrap();
            let over = AtomicBool::new(false);
            let noticed = thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        run("ip addr add 192.0.2.1/32 dev other");
                        run("ip addr del 192.0.2.1/32 dev other");
                    }
                });
                let noticed = scope.spawn(|| {
                    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        while !over.load(Ordering::Relaxed) {
                            let long = Duration::from_millis(200);
                            if timeout(long, monitor.externally_changed()).await.is_ok() {
                                return true;
                            }
                        }
                        false
                    })
                });
                let address = |i: u128| Ipv6Addr::from_bits((0xfd00 << 112) + i).into();
                let addresses: Vec<IpAddr> = (1..2000).map(address).collect();
                for _ in 0..3 {
                    device.change(&addresses, &[]).unwrap();
                    device.change(&[], &addresses).unwrap();
                }
                over.store(true, Ordering::Relaxed);
                noticed.join().unwrap()
            });
            assert!(!noticed);
        });
    }
}
