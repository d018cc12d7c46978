//! The stories that every backend passes. IPVS does not announce changes: the monitor is that of
//! rules and addresses.

use switchyard_core::testing::conformance;

use super::{on_ipvs, subject::IpvsSubject};

switchyard_core::conformance!(nft, on_ipvs!(IpvsSubject::nft()));

/// The stories about what iptables does otherwise than a table.
mod iptables {
    use super::*;

    #[test]
    fn a_restart_sends_nothing() {
        conformance::a_restart_sends_nothing(&on_ipvs!(IpvsSubject::iptables()));
    }

    #[test]
    fn damage_is_repaired_and_named() {
        conformance::damage_is_repaired_and_named(&on_ipvs!(IpvsSubject::iptables()));
    }

    #[test]
    fn a_refused_family_costs_the_other_nothing() {
        conformance::a_refused_family_costs_the_other_nothing(&on_ipvs!(IpvsSubject::iptables()));
    }
}
