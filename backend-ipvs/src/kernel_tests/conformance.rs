//! The stories that every backend passes. IPVS does not announce changes: the monitor is that of
//! rules and addresses.

use super::{on_ipvs, subject::IpvsSubject};

switchyard_core::conformance!(nft, on_ipvs!(IpvsSubject::nft()));

/// The stories about what iptables does otherwise than a table.
mod iptables {
    use super::*;

    switchyard_core::conformance!(@stories on_ipvs!(IpvsSubject::iptables());
        a_restart_sends_nothing
        damage_is_repaired_and_named
        a_refused_family_costs_the_other_nothing
    );
}
