//! tmp
use std::path::Path;
use std::process::Command;
/// Whether the kernel has IPVS, if need be after loading its module.
pub(crate) fn has_ipvs() -> bool {
    is_loaded() || {
        let _ = Command::new("modprobe").args(["-q", "ip_vs"]).output();
        is_loaded()
    }
}
pub(crate) fn is_loaded() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}
