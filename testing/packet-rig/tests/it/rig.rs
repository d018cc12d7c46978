//! A test of the rig without a proxy. What its probes observe is shown by every packet case.

use std::{os::unix::process::ExitStatusExt, panic, process::Child, thread};

use packet_rig::{EchoServer, NetNs, Protocol, Topology, wait::until};

const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// The kernel removes a namespace with everything in it, so a link whose other end is inside
/// disappears with it. That is seen from a namespace of our own.
#[test]
fn nothing_is_left_after_a_drop_even_by_panic() {
    let observer = NetNs::new().unwrap();
    let spawned = {
        let observer = observer.clone();
        thread::spawn(move || {
            let topology = Topology::new().unwrap();
            let _server =
                EchoServer::start(&topology.node().namespace, "node-1", 9000, &BOTH).unwrap();
            for (index, place) in topology.places().iter().enumerate() {
                observer
                    .ip(&format!(
                        "link add watch{index} type veth peer name watched netns {}",
                        place.namespace.path().display()
                    ))
                    .unwrap();
            }
            let child = topology.client().namespace.command("sleep").arg("600").spawn().unwrap();
            assert_eq!(links(&observer), topology.places().len());
            // Ends the thread without running the rest of the test.
            panic::resume_unwind(Box::new(child));
        })
    };
    let mut child: Child = *spawned.join().unwrap_err().downcast().unwrap();
    until("the namespaces are gone", || links(&observer) == 0);
    let killed = child.wait().unwrap();
    assert_eq!(killed.signal(), Some(libc::SIGKILL), "it was to end with its thread");
}

/// The number of veth links in the namespace.
fn links(observer: &NetNs) -> usize {
    let listed = observer.output("ip", &["-o", "link", "show", "type", "veth"], "").unwrap();
    listed.lines().count()
}
