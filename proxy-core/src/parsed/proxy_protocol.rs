//! The annotation of a Service whose endpoints understand the PROXY protocol:
//! `switchyard/proxy-protocol: v2`.

use super::{problem::Problems, values::clip};
use crate::{model::ProxyProtocol, objects::Metadata};

/// The annotation.
pub(crate) const PROXY_PROTOCOL: &str = "switchyard/proxy-protocol";

/// Returns the version that a Service asks for; `None` if the Service asks for nothing, or for
/// something unknown, which is added to `problems`.
pub(crate) fn parse(metadata: &Metadata, problems: &mut Problems) -> Option<ProxyProtocol> {
    let text = metadata.annotations.get(PROXY_PROTOCOL)?;
    let version = text.trim().parse().ok();
    if version.is_none() {
        problems.add(
            format!("metadata.annotations[{PROXY_PROTOCOL}]"),
            format_args!(
                "`{}` is neither v1 nor v2; endpoints are not sent the client's address",
                clip(text.trim())
            ),
        );
    }
    version
}
