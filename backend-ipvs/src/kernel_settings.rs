//! The parameters of the kernel (sysctls) that IPVS needs as a proxy for Services: those of
//! kube-proxy's ipvs mode, but for `conn_reuse_mode`.

use std::path::Path;

use switchyard_kernel::{KernelVersion, sysctl::set_sysctl};

use crate::IpvsConfig;

pub(crate) use switchyard_kernel::sysctl::SysctlError as KernelSettingError;

/// Where the kernel has its parameters.
pub(crate) const PROC_SYS: &str = "/proc/sys";

const RUN_ESTIMATION: &str = "net/ipv4/vs/run_estimation";
const REUSE_MODE: &str = "net/ipv4/vs/conn_reuse_mode";
/// The first kernel with `conn_reuse_mode`.
const FIRST_WITH_REUSE_MODE: KernelVersion = KernelVersion(4, 1);
/// The first kernel in which `conn_reuse_mode=1` delays no connection.
const FIRST_WITHOUT_DELAY: KernelVersion = KernelVersion(5, 9);

/// The parameters that could not be set.
#[derive(Debug, Default)]
pub(crate) struct Unset {
    /// Those without which IPVS cannot serve.
    required: Vec<KernelSettingError>,
    optional: Vec<KernelSettingError>,
}

impl Unset {
    /// Returns those without which IPVS can serve.
    ///
    /// # Errors
    /// The first of the others.
    pub(crate) fn optional(self) -> Result<Vec<KernelSettingError>, KernelSettingError> {
        self.required.into_iter().next().map_or(Ok(()), Err)?;
        Ok(self.optional)
    }

    pub(crate) fn all(self) -> Vec<KernelSettingError> {
        self.required.into_iter().chain(self.optional).collect()
    }
}

/// Sets the parameters that differ, below the directory `root` ([`PROC_SYS`]), and returns those
/// that cannot be written. A parameter that is right already is not written, so that a process
/// without the privilege can run on a node that `--init-only` has prepared. Needs the module
/// `ip_vs`, with which its parameters appear.
pub(crate) fn apply(root: &Path, config: &IpvsConfig, kernel: Option<KernelVersion>) -> Unset {
    let always = [
        // Masquerading, and the rules that match the original address, need conntrack entries.
        ("net/ipv4/vs/conntrack", "1"),
        // Connections to a real server that is gone end, rather than hang.
        ("net/ipv4/vs/expire_nodest_conn", "1"),
        // A client with affinity leaves a real server that gets no new connections.
        ("net/ipv4/vs/expire_quiescent_template", "1"),
        ("net/ipv4/ip_forward", "1"),
    ];
    let strict = [("net/ipv4/conf/all/arp_ignore", "1"), ("net/ipv4/conf/all/arp_announce", "2")];
    let set = |(name, value)| set_sysctl(&root.join(name), value).err();
    let required = always.into_iter().chain(strict.into_iter().filter(|_| config.strict_arp));
    let estimation = config.run_estimation.map(|runs| if runs { "1" } else { "0" });
    let optional = [(REUSE_MODE, reuse_mode(kernel)), (RUN_ESTIMATION, estimation)];
    let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
    Unset {
        required: required.filter_map(set).collect(),
        optional: optional.filter_map(set).collect(),
    }
}

/// Returns the value of `conn_reuse_mode` on this kernel, a new one if its version is unknown.
///
/// With 0, a new connection from a port that the client used a moment ago goes to the real server
/// of the old connection, even if that one has weight 0 because it is draining: a busy client keeps
/// a pod that is gone alive, and gets no answers (kubernetes issue 81775). With 1, the scheduler
/// chooses anew. kube-proxy sets 0 on kernels before 5.9, where 1 drops the first packet of such a
/// connection, which costs it a second, and leaves later kernels alone. Here, these get 1, in case
/// that 0 was left there.
fn reuse_mode(kernel: Option<KernelVersion>) -> Option<&'static str> {
    match kernel {
        Some(kernel) if kernel < FIRST_WITH_REUSE_MODE => None,
        Some(kernel) if kernel < FIRST_WITHOUT_DELAY => Some("0"),
        _ => Some("1"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use tempfile::TempDir;

    use super::*;

    const NEW: Option<KernelVersion> = Some(KernelVersion(6, 1));
    /// Each parameter with the value of a kernel that was not prepared, and the wanted one.
    const ALL: [(&str, &str, &str); 7] = [
        ("net/ipv4/vs/conntrack", "0", "1"),
        ("net/ipv4/vs/expire_nodest_conn", "0", "1"),
        ("net/ipv4/vs/expire_quiescent_template", "0", "1"),
        ("net/ipv4/ip_forward", "0", "1"),
        (REUSE_MODE, "0", "1"),
        ("net/ipv4/conf/all/arp_ignore", "0", "1"),
        ("net/ipv4/conf/all/arp_announce", "0", "2"),
    ];

    fn plain() -> IpvsConfig {
        IpvsConfig::default()
    }

    fn strict() -> IpvsConfig {
        IpvsConfig { strict_arp: true, ..plain() }
    }

    /// Makes a directory with these parameters.
    fn parameters(values: impl IntoIterator<Item = (&'static str, &'static str)>) -> TempDir {
        let directory = TempDir::new().unwrap();
        for (name, value) in values {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        directory
    }

    fn unprepared() -> TempDir {
        parameters(ALL.map(|(name, before, _)| (name, before)))
    }

    fn value(directory: &TempDir, name: &str) -> String {
        fs::read_to_string(directory.path().join(name)).unwrap().trim().to_owned()
    }

    #[test]
    fn what_ipvs_needs_is_set() {
        let directory = unprepared();
        assert!(apply(directory.path(), &plain(), NEW).all().is_empty());
        for (name, before, wanted) in ALL {
            let expected = if name.contains("arp_") { before } else { wanted };
            assert_eq!(value(&directory, name), expected, "{name}");
        }
        assert!(apply(directory.path(), &strict(), NEW).all().is_empty());
        for (name, _, wanted) in ALL {
            assert_eq!(value(&directory, name), wanted, "{name}");
        }
    }

    #[test]
    fn the_version_decides_about_ports_that_are_used_again() {
        let set_on = |kernel| {
            let directory = unprepared();
            fs::write(directory.path().join(REUSE_MODE), "7").unwrap();
            apply(directory.path(), &plain(), kernel).optional().unwrap();
            value(&directory, REUSE_MODE)
        };
        let on = |major, minor| set_on(Some(KernelVersion(major, minor)));
        assert_eq!([on(5, 9), on(6, 1), set_on(None)], ["1", "1", "1"]);
        assert_eq!([on(4, 1), on(4, 19), on(5, 8)], ["0", "0", "0"]);
        assert_eq!(on(3, 18), "7", "there is no such parameter");
    }

    #[test]
    fn what_is_right_need_not_be_writable() {
        let directory = parameters(ALL.map(|(name, _, wanted)| (name, wanted)));
        for (name, _, _) in ALL {
            let path = directory.path().join(name);
            fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        }
        assert!(apply(directory.path(), &strict(), NEW).all().is_empty());
        // Root may write to it nonetheless, but then the line break would be gone.
        for (name, _, wanted) in ALL {
            let text = fs::read_to_string(directory.path().join(name)).unwrap();
            assert_eq!(text, format!("{wanted}\n"), "{name} was written");
        }
    }

    #[test]
    fn what_cannot_be_set_is_named_and_the_rest_is_set() {
        // Without the module ip_vs, its parameters are missing.
        let others = ALL.into_iter().filter(|(name, ..)| !name.contains("/vs/"));
        let directory = parameters(others.map(|(name, before, _)| (name, before)));
        let error = apply(directory.path(), &strict(), NEW).optional().unwrap_err();
        let path = directory.path().join("net/ipv4/vs/conntrack");
        assert_eq!(error.to_string(), format!("cannot set {} to 1", path.display()));
        for name in ["net/ipv4/ip_forward", "net/ipv4/conf/all/arp_ignore"] {
            assert_eq!(value(&directory, name), "1", "{name}");
        }
    }

    /// A node that serves goes on with any of them as they are; a node that starts, with
    /// `conn_reuse_mode`.
    #[test]
    fn what_cannot_be_set_may_be_tolerable() {
        let others = ALL.into_iter().filter(|(name, ..)| *name != REUSE_MODE);
        let directory = parameters(others.map(|(name, _, wanted)| (name, wanted)));
        fs::create_dir(directory.path().join(REUSE_MODE)).unwrap();
        let unset = apply(directory.path(), &strict(), NEW).optional().unwrap();
        assert!(unset.len() == 1 && unset[0].path.ends_with("conn_reuse_mode"), "{unset:?}");
        let nothing = TempDir::new().unwrap();
        assert_eq!(apply(nothing.path(), &strict(), NEW).all().len(), ALL.len());
    }

    /// Where it cannot be set, as in a kernel before 5.15, IPVS serves nevertheless.
    #[test]
    fn rates_are_computed_as_asked() {
        for (asked, expected) in [(None, "7"), (Some(false), "0"), (Some(true), "1")] {
            let directory = unprepared();
            let path = directory.path().join(RUN_ESTIMATION);
            let config = IpvsConfig { run_estimation: asked, ..plain() };
            fs::create_dir(&path).unwrap();
            let unset = apply(directory.path(), &config, NEW).optional().unwrap();
            assert_eq!(unset.len(), usize::from(asked.is_some()), "{unset:?}");
            fs::remove_dir(&path).unwrap();
            fs::write(&path, "7").unwrap();
            assert!(apply(directory.path(), &config, NEW).all().is_empty());
            assert_eq!(value(&directory, RUN_ESTIMATION), expected);
        }
    }
}
