//! A listing of the public API of a library, made from its sources.
//!
//! [`listing`] reads a crate and prints what is reachable from outside: modules, types with their
//! public fields, signatures without bodies, and impls. Items appear where users find them: those
//! of private modules under the `pub use` that exports them. Items are sorted, so that moving code
//! between files changes nothing.
//!
//! A listing is a view of the sources, not of the compiler's: paths are written as in the source,
//! macros are not expanded, and what is behind the feature `testing` is left out, because that
//! feature has no stable API. In exchange the listing depends on no version of the compiler.

mod crate_tree;
mod public;
mod stripped;

use std::{io, path::PathBuf};

pub use self::public::listing;

/// Why there is no listing.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// A source cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A source is not Rust.
    #[error("cannot parse {}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: syn::Error,
    },
    /// A `pub use` names something that is not in the crate.
    #[error("{path} is exported, but not found")]
    NotFound {
        /// The path as it is written.
        path: String,
    },
}

/// The examples of the READMEs are compiled, and run unless that needs a kernel.
#[cfg(doctest)]
mod readmes {
    macro_rules! readmes {
        ($($name:ident: $file:literal),* $(,)?) => {
            $(#[doc = include_str!(concat!("../../../", $file, "/README.md"))] struct $name;)*
        };
    }
    readmes!(
        Config: "agent/config",
        Conntrack: "kernel/conntrack",
        Core: "proxy-core",
        Forwarder: "forwarder",
        Health: "agent/health",
        Interfaces: "kernel/interfaces",
        Iptables: "backend-iptables",
        Ipset: "kernel/ipset",
        Ipvs: "backend-ipvs",
        IpvsNetlink: "kernel/ipvs",
        Klog: "agent/klog",
        Netlink: "kernel/netlink",
        Nft: "backend-nft",
        NftRuleset: "kernel/nft-ruleset",
        Observability: "agent/observability",
        SourceKube: "sources/kube",
        SourceManifests: "sources/manifests",
        Userspace: "backend-userspace",
        Xtables: "kernel/xtables",
    );
}
