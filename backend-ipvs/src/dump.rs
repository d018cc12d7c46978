//! The virtual servers as text, for people.

use std::{fmt::Write, net::SocketAddr};

use switchyard_core::proxier::KernelTable;
use switchyard_kernel::{
    ipvs::{Ipvs, RealServer, Selector, VirtualServer},
    netlink::Error,
};

/// Reads the virtual servers of the node with their real servers.
pub(crate) fn dump(most: usize) -> KernelTable {
    let name = "ipvs".to_owned();
    match read(most) {
        Ok(text) => KernelTable { name, text },
        Err(error) => KernelTable::unread(name, &error),
    }
}

/// Writes them nearly as `ipvsadm -Sn` does; not more than `most` bytes, and the virtual server
/// that goes beyond them. Returns `None` if the kernel has no IPVS.
fn read(most: usize) -> Result<Option<String>, Error> {
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(None) };
    let mut text = String::new();
    for server in ipvs.virtual_servers()? {
        if text.len() > most {
            return Ok(Some(text + KernelTable::CUT));
        }
        let mut real = ipvs.real_servers(&server.selector)?;
        real.sort_unstable_by_key(|real| real.address);
        write(&mut text, &server, &real);
    }
    Ok(Some(text))
}

fn write(text: &mut String, server: &VirtualServer, real: &[RealServer]) {
    let name = match server.selector {
        Selector::Mark { mark, .. } => format!("-f {mark}"),
        Selector::Address { protocol, ip, port } => {
            let protocol = match i32::from(protocol) {
                libc::IPPROTO_TCP => "-t",
                libc::IPPROTO_UDP => "-u",
                _ => "--sctp-service",
            };
            format!("{protocol} {}", SocketAddr::new(ip, port))
        }
    };
    let VirtualServer { scheduler, flags, timeout, .. } = server;
    let _ = write!(text, "-A {name} -s {scheduler}");
    if flags & VirtualServer::PERSISTENT != 0 {
        let _ = write!(text, " -p {timeout}");
    }
    let _ = writeln!(text, " # flags {flags:#x}");
    for RealServer { address, weight, active, inactive, is_masquerading } in real {
        let method = if *is_masquerading { "-m" } else { "# not masquerading" };
        let _ = writeln!(
            text,
            "-a {name} -r {address} -w {weight} {method} # {active} active, {inactive} inactive"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_server_is_a_line_and_so_is_each_real_one() {
        let selector = Selector::Address { protocol: 6, ip: [10, 96, 0, 1].into(), port: 80 };
        let (scheduler, flags) = ("rr".to_owned(), VirtualServer::PERSISTENT);
        let server = VirtualServer { selector, scheduler, flags, timeout: 60, netmask: !0 };
        let mut text = String::new();
        write(&mut text, &server, &[RealServer::new(([10, 1, 0, 1], 8080).into(), 3)]);
        let lines = "-A -t 10.96.0.1:80 -s rr -p 60 # flags 0x1\n\
                     -a -t 10.96.0.1:80 -r 10.1.0.1:8080 -w 3 -m # 0 active, 0 inactive\n";
        assert_eq!(text, lines);
    }
}
