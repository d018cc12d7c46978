//! The kernel as the backend needs it. Tests have a model of it.

use std::{collections::BTreeSet, net::IpAddr, path::Path, time::Duration};

use ipnet::IpNet;
use rustix::thread::{MembarrierCommand, membarrier};
use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_kernel::{
    KernelVersion,
    ipvs::{Ipvs, RealServer, Refusal, Selector, Timeouts, VirtualServer},
    netlink::Error,
    route::{DeviceError, DummyDevice},
};

use super::commands::Commands;
use crate::{
    config::{DEVICE, IpvsConfig},
    kernel_settings::{self, Unset},
    leftovers, probe,
    scheduler::Scheduler,
};

/// Virtual servers, the device with the addresses of Services, and parameters. The methods are
/// those of [`Ipvs`], [`DummyDevice`], [`kernel_settings`] and [`leftovers`].
pub(crate) trait Kernel: Send {
    fn set_parameters(&mut self, config: &IpvsConfig) -> Unset;
    fn timeouts(&mut self) -> Result<Timeouts, Error>;
    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error>;
    fn has_scheduler(&mut self, scheduler: Scheduler) -> Result<bool, Error>;

    fn virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error>;
    fn read_virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error>;
    fn real_servers(&mut self, of: &Selector) -> Result<Vec<RealServer>, Error>;
    /// Carries out commands, and returns what was refused and the number of bytes that were sent.
    fn commit(&mut self, commands: &Commands) -> Result<(Vec<Refusal>, usize), Error>;
    /// Waits until each packet that is under way in the kernel has met the rules and IPVS.
    fn pass_packets(&mut self);

    fn ensure_device(&mut self) -> Result<bool, DeviceError>;
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError>;
    fn other_addresses(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError>;
    fn change_addresses(
        &mut self,
        add: &[IpAddr],
        remove: &[IpAddr],
    ) -> Result<Vec<DeviceError>, DeviceError>;
    fn await_local(
        &mut self,
        ips: &[IpAddr],
        patience: Duration,
    ) -> Result<Vec<IpAddr>, DeviceError>;

    fn remove_other_rules(&mut self, beneath: Mode) -> Result<bool, ProxierError>;
    fn remove_all(&mut self, excluded: &[IpNet]) -> Result<(), ProxierError>;
}

/// The kernel of this node, in the network namespace of the thread that opened it.
pub(crate) struct NodeKernel {
    ipvs: Ipvs,
    device: DummyDevice,
}

impl NodeKernel {
    pub(crate) fn new(ipvs: Ipvs) -> Result<Self, DeviceError> {
        Ok(Self { ipvs, device: DummyDevice::open(DEVICE)? })
    }
}

impl Kernel for NodeKernel {
    fn set_parameters(&mut self, config: &IpvsConfig) -> Unset {
        let root = Path::new(kernel_settings::PROC_SYS);
        kernel_settings::apply(root, config, KernelVersion::running())
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.ipvs.timeouts()
    }

    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.ipvs.set_timeouts(timeouts)
    }

    fn has_scheduler(&mut self, scheduler: Scheduler) -> Result<bool, Error> {
        probe::has_scheduler(&mut self.ipvs, scheduler, probe::LOADING_IN_SYNC)
    }

    fn virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        self.ipvs.virtual_servers()
    }

    fn read_virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        self.ipvs.read_virtual_servers()
    }

    fn real_servers(&mut self, of: &Selector) -> Result<Vec<RealServer>, Error> {
        self.ipvs.real_servers(of)
    }

    fn commit(&mut self, commands: &Commands) -> Result<(Vec<Refusal>, usize), Error> {
        let batch = commands.batch();
        Ok((self.ipvs.commit(&batch)?, batch.bytes()))
    }

    fn pass_packets(&mut self) {
        // A packet goes through its hooks within one read-side section of RCU, and this command is
        // the kernel's synchronize_rcu (kernel/sched/membarrier.c). A kernel without the command,
        // or with processors without a tick, refuses: a packet may be refused then, as without the
        // wait.
        if let Err(error) = membarrier(MembarrierCommand::Global) {
            tracing::debug!(%error, "Could not wait for packets that are under way");
        }
    }

    fn ensure_device(&mut self) -> Result<bool, DeviceError> {
        self.device.ensure()
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        self.device.addresses()
    }

    fn other_addresses(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        self.device.others()
    }

    fn change_addresses(
        &mut self,
        add: &[IpAddr],
        remove: &[IpAddr],
    ) -> Result<Vec<DeviceError>, DeviceError> {
        self.device.change_each(add, remove)
    }

    fn await_local(
        &mut self,
        ips: &[IpAddr],
        patience: Duration,
    ) -> Result<Vec<IpAddr>, DeviceError> {
        self.device.await_local(ips, patience)
    }

    fn remove_other_rules(&mut self, beneath: Mode) -> Result<bool, ProxierError> {
        leftovers::remove_other_rules(beneath)
    }

    fn remove_all(&mut self, excluded: &[IpNet]) -> Result<(), ProxierError> {
        leftovers::remove_all(excluded)
    }
}
