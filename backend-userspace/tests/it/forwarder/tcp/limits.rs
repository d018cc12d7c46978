//! Clients that take all that they can get, and descriptors that run out.

use crate::forwarder::support::*;

#[test]
fn connections_that_wait_for_an_endpoint_leave_places_for_others() {
    let (forwarder, counters) = counting(|config| {
        config.connections = Some(90);
        config.connect_timeouts = vec![PATIENCE * 3];
    });
    let silent = silent();
    let web = serve(&forwarder, "web", &[silent.address]);
    let api = serve(&forwarder, "api", &[echo("b")]);
    let mut waiting = Vec::new();
    until("one is refused", || {
        waiting.push(connect(web));
        refused(&counters) > 0
    });
    expect(&mut connect(api), "b");
}

#[cfg(target_os = "linux")]
mod descriptors {
    use std::{
        env,
        error::Error,
        fs::{self, File},
        io::Write,
        process::Command,
        sync::Arc,
        thread,
        time::Duration,
    };

    use rustix::process::{Resource, Rlimit, setrlimit};
    use socket2::{Domain, Socket, Type};
    use switchyard_core::model::Protocol;

    use super::*;

    /// The descriptors of the event loops of two threads.
    const LOOPS: usize = 2 * 4;

    const CHILD: &str = "SWITCHYARD_FORWARDER_CHILD";

    /// Runs a test of this module in its own process. Returns whether this is that process,
    /// which may have only so many descriptors.
    #[must_use]
    fn limited(test: &str, descriptors: u64) -> bool {
        if env::var_os(CHILD).is_some() {
            let limit = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
            setrlimit(Resource::Nofile, limit).unwrap();
            return true;
        }
        let name = format!("forwarder::tcp::limits::descriptors::{test}");
        let mut child = Command::new(env::current_exe().unwrap());
        let output = child.args(["--exact", &name]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        false
    }

    #[test]
    fn connections_wait_while_there_are_no_descriptors() {
        if !limited("connections_wait_while_there_are_no_descriptors", 600) {
            return;
        }
        let count = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = count();
        let forwarder = forwarder(|_| {});
        // Two more are the process's, for signals.
        assert!((1..=LOOPS + 2).contains(&(count() - before)), "{before}, {}", count());
        assert_eq!(forwarder.usage().limit, (600 - 256 - LOOPS) / 2);
        let to = serve(&forwarder, "web", &[echo("a")]);
        assert_eq!(forwarder.usage().limit, (600 - 256 - LOOPS - 1) / 2);
        let mut established = connect(to);
        expect(&mut established, "a");

        let clients = [(); 2].map(|()| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap());
        let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        for client in &clients {
            client.connect(&to.into()).unwrap();
        }
        let api = id("api", Protocol::Tcp);
        forwarder.serve(&Arc::new(service(&api, &[])));
        let error = forwarder.listen(&listener(&api)).unwrap_err();
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("Too many open files"), "{cause}");
        // Who has a connection does not notice.
        established.write_all(b"hello").unwrap();
        expect(&mut established, "hello");
        // The listener has tried by then.
        thread::sleep(Duration::from_millis(50));
        drop(files);
        for client in clients {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            expect(&mut client.into(), "a");
        }
        expect(&mut connect(to), "a");
    }

    #[test]
    fn listeners_leave_descriptors_for_connections() {
        if !limited("listeners_leave_descriptors_for_connections", 300) {
            return;
        }
        let forwarder = forwarder(|_| {});
        let web = id("web", Protocol::Tcp);
        forwarder.serve(&Arc::new(service(&web, &[echo("a")])));
        let opened = (0..50).map_while(|_| forwarder.listen(&listener(&web)).ok());
        let opened: Vec<_> = opened.collect();
        assert_eq!(opened.len(), (300 - 256 - LOOPS) / 2);
        let error = forwarder.listen(&listener(&web)).unwrap_err();
        assert!(error.source().unwrap().to_string().contains("RLIMIT_NOFILE"), "{error}");
        for to in opened {
            expect(&mut connect(to), "a");
            // A client may have three of the places.
            until("the connection ends", || forwarder.usage().connections == 0);
        }
    }
}
