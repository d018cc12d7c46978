//! The two-way swap: Switchyard takes over from kube-proxy, and kube-proxy from Switchyard, under
//! load. kube-proxy is the stand-in in [`kube_proxy`], or the genuine program that `KUBE_PROXY`
//! names.
//!
//! `SWITCHYARD_BIN` names the proxy (else: the program that cargo built).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

/// Makes a test of each line: `name: what it does;`.
macro_rules! tests {
    ($($name:ident: $body:expr;)*) => {
        $(
            #[test]
            fn $name() {
                $body
            }
        )*
    };
}

mod between_modes;
mod cleanup;
mod kube_proxy;
mod same_rules;
mod support;
mod taken_over;
mod taking_over;
