//! `make demo`: Services being proxied, live, without a cluster.
//!
//! The demo has two acts. [`cluster`] makes a small cluster of network namespaces and starts `switchyard`
//! on one of its nodes, in nftables mode; root is needed. [`user`] starts `switchyard` in userspace mode,
//! with servers and clients at loopback addresses, as any user; it is chosen by the argument `user`, or
//! for who is not root. In both, the proxy follows a copy of `examples/` ([`manifests`]), clients connect
//! all the time ([`traffic`]), the script changes endpoints ([`stage`]), and the [`view`] shows where
//! connections go. Where `KUBE_APISERVER` and `ETCD` name a genuine API server and its etcd, the proxy of the
//! first act follows that ([`server`]). Nothing stays: namespaces have no names, and the proxy dies with the demo.

#![forbid(unsafe_code)]

mod board;
mod cast;
mod cluster;
mod display;
mod error;
mod manifests;
mod screen;
mod server;
mod stage;
mod stop;
mod traffic;
mod user;
mod view;

use std::{env, path::PathBuf, process::ExitCode, sync::Arc};

use packet_rig::chain;

use self::{
    board::Board,
    display::Display,
    error::{DemoError, Result},
    stop::Stop,
};

/// A part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Cluster,
    User,
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(DemoError::Stopped) => {
            eprintln!("demo: stopped; everything is put away");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("demo: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo, and returns the number of failed connections.
fn run() -> Result<u64> {
    let act = Act::choose(env::args().nth(1).as_deref(), rustix::process::geteuid().is_root())?;
    let binary = find_switchyard()?;
    let cast = match act {
        Act::Cluster => {
            cluster::check()?;
            &cluster::CLUSTER
        }
        Act::User => &user::LOOPBACK,
    };
    let stop = Stop::listen().map_err(DemoError::io("listen for signals"))?;
    let board = Arc::new(Board::new(cast));
    let mut display = Display::start(&board, &stop)?;
    let performed = match act {
        Act::Cluster => cluster::perform(binary, &board, &mut display, &stop),
        Act::User => user::perform(&binary, &board, &mut display, &stop),
    };
    let (summary, broken) = performed.map_err(|error| {
        // Ctrl-C reaches every process of the terminal; what follows from that is no failure.
        if stop.is_set() { DemoError::Stopped } else { error }
    })?;
    let failed = board.state().failed() + broken;
    display.finish(&summary).map_err(DemoError::io("print"))?;
    Ok(failed)
}

impl Act {
    /// The act that the argument names, else the one that the user can run.
    fn choose(argument: Option<&str>, is_root: bool) -> Result<Self> {
        match argument {
            None if is_root => Ok(Self::Cluster),
            None => {
                println!(
                    "demo: not root, so this is userspace mode; as root, the demo shows nftables mode"
                );
                Ok(Self::User)
            }
            Some("user") => Ok(Self::User),
            Some("cluster") => Ok(Self::Cluster),
            Some(other) => Err(DemoError::NoAct(other.to_owned())),
        }
    }
}

/// The path of the program: `SWITCHYARD_BIN`, else beside the demo.
fn find_switchyard() -> Result<PathBuf> {
    let beside = || Some(env::current_exe().ok()?.with_file_name("switchyard"));
    let path = env::var_os("SWITCHYARD_BIN").map(PathBuf::from).or_else(beside);
    let path = path.unwrap_or_else(|| PathBuf::from("switchyard"));
    match path.is_file() {
        true => Ok(path),
        false => Err(DemoError::NoProxy(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_act_is_one_that_the_user_can_run_unless_it_is_named() {
        for (argument, is_root, act) in [
            (None, true, Act::Cluster),
            (None, false, Act::User),
            (Some("user"), true, Act::User),
            (Some("cluster"), false, Act::Cluster),
        ] {
            assert_eq!(Act::choose(argument, is_root).unwrap(), act, "{argument:?} {is_root}");
        }
        assert!(Act::choose(Some("other"), true).is_err());
    }
}
