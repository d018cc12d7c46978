//! Targets of fuzzing: one for each reader of what comes from outside the program. A target takes
//! any bytes, and panics if they lead to anything that a reader must not do.
//!
//! `tests/` runs each target with the inputs of `corpus/`, changed at random; `fuzz_targets/` has
//! libFuzzer call the same functions ([CONTRIBUTING.md](../../CONTRIBUTING.md)).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]
#![forbid(unsafe_code)]

mod kernel;
pub mod mutate;
mod objects;

/// A target: its name, which is also that of a folder in `corpus/`, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("config", |bytes| text(bytes, |text| drop(switchyard_agent::check_configuration(text)))),
    ("objects", |bytes| text(bytes, objects::decoded_as_in_full)),
    ("annotations", |bytes| text(bytes, objects::annotated)),
    ("answers", |bytes| _ = switchyard_sources::kube::testing::read_answer(bytes)),
    ("credentials", |bytes| _ = switchyard_sources::kube::testing::has_credentials(bytes)),
    ("manifests", |bytes| text(bytes, objects::manifests)),
    ("netlink", kernel::messages),
    ("nftables", |bytes| kernel::tables(bytes, b"")),
    ("nftables-notices", kernel::notices),
    ("gates", kernel::gates),
    ("trace", kernel::trace),
    ("conntrack", kernel::conntrack),
    ("ipvs", kernel::ipvs),
    ("ipset", kernel::ipset),
    ("route", kernel::route),
    ("iptables-save", |bytes| text(bytes, kernel::iptables_save)),
    ("iptables-nft", kernel::iptables_nft),
    ("iptables-legacy", kernel::iptables_legacy),
    ("nft-json", kernel::nft_json),
];

/// Hands over bytes that are text.
fn text(bytes: &[u8], read: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        read(text);
    }
}
