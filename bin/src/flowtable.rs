//! The flowtable of `--flowtable-devices`: connections of Services that this node forwards go past
//! the rules.

use std::collections::BTreeMap;

use switchyard_core::error::ErrorChain;
use switchyard_kernel::{
    netlink::Error,
    nftables::{FLOW_TABLE, FlowTable},
    route::DeviceFollower,
};
use tokio::{
    task::block_in_place,
    time::{Duration, sleep},
};

/// The time after a failure until the next attempt: another instance of this program may be about
/// to end, or a module of the kernel to be loaded.
const RETRY: Duration = Duration::from_secs(10);

/// Keeps the devices whose names match one of the patterns in the kernel's flowtable, as long as
/// this process lives. A failure is logged whenever it differs from the last one.
pub async fn follow(patterns: Vec<String>) {
    let mut logged = None;
    loop {
        let Err(error) = attempt(&patterns, &mut logged).await;
        let error = ErrorChain(&error).to_string();
        if logged.as_ref() != Some(&error) {
            tracing::warn!(err = %error, "No flowtable: connections go on by the rules");
            logged = Some(error);
        }
        sleep(RETRY).await;
    }
}

/// Follows the devices until something fails; then the kernel removes the flowtable.
async fn attempt(
    patterns: &[String],
    logged: &mut Option<String>,
) -> Result<std::convert::Infallible, Error> {
    // The kernel may be busy with a commit of rules, or with other devices.
    let mut follower = block_in_place(DeviceFollower::open)?;
    let mut table = block_in_place(FlowTable::add)?;
    tracing::info!(
        table = FLOW_TABLE,
        ?patterns,
        "Connections of Services bypass rules from their 21st packet on"
    );
    *logged = None;
    let mut added = BTreeMap::new();
    loop {
        let mut wanted = block_in_place(|| follower.list())?;
        wanted.retain(|_, name| patterns.iter().any(|pattern| matches(pattern, name)));
        let new = wanted.iter().filter(|(index, _)| !added.contains_key(*index));
        let new: Vec<&str> = new.map(|(_, name)| &**name).collect();
        for (index, error) in block_in_place(|| table.add_devices(&new))? {
            // It may be gone again. The next look that finds another device tries others only.
            tracing::warn!(device = new.get(index), err = %ErrorChain(&error), "No flowtable at a device");
        }
        if !new.is_empty() {
            tracing::debug!(devices = ?new, "Devices of the flowtable");
        }
        added = wanted;
        follower.changed().await?;
    }
}

/// Whether the pattern, a name or the beginning of names with a star, matches the name.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_end() {
        for (pattern, is_match) in
            [("eth0", true), ("eth*", true), ("*", true), ("eth", false), ("veth*", false)]
        {
            assert_eq!(matches(pattern, "eth0"), is_match, "{pattern}");
        }
    }
}
