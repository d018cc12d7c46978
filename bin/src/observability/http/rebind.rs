//! Servers whose addresses may change while they run.

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use switchyard_core::error::ErrorChain;
use tokio::{net::TcpListener, sync::watch, time};

use super::{Handler, connections::Connections, listen, serve::accept};
use crate::config::settings::ServerSettings;

/// The wait before a failed bind is retried.
const RETRY: Duration = Duration::from_secs(5);

/// The address of a server, and what a failure to bind it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// The address, or `None` to serve nowhere.
    pub address: Option<SocketAddr>,
    /// Whether a failed bind is fatal; otherwise it is retried.
    pub hard_fail: bool,
}

/// Returns the addresses of the health server and of the metrics server.
pub fn addresses(servers: &ServerSettings) -> [ServerAddress; 2] {
    [servers.healthz, Some(servers.metrics)]
        .map(|address| ServerAddress { address, hard_fail: servers.bind_hard_fail })
}

/// The address of each server, where it serves.
pub type Bound<const N: usize> = [Option<SocketAddr>; N];

/// A server, which serves while its future is polled. Dropping the server frees the address.
struct Server {
    address: SocketAddr,
    serving: Pin<Box<dyn Future<Output = Infallible> + Send>>,
}

/// Serves each handler at its wanted address, for ever. After a change, the new address is bound
/// before the old server is closed, unless another server that moves is in the way (`0.0.0.0:1` and
/// `127.0.0.1:1`, or two that exchange their ports). Connections to the old server end. The
/// connections count for the limits of `connections`. `bound` gets the servers' addresses.
/// Returns the name, the address and the error of a fatal failure to bind, which is one of the
/// first attempt at an address.
pub async fn serve<const N: usize>(
    mut wanted: watch::Receiver<[ServerAddress; N]>,
    handlers: [(&'static str, Arc<dyn Handler>); N],
    connections: Arc<Connections>,
    bound: watch::Sender<Bound<N>>,
) -> (&'static str, SocketAddr, io::Error) {
    let mut running: [Option<Server>; N] = [const { None }; N];
    // The addresses whose failure was not fatal: a setting that changes later does not end the
    // program.
    let mut retried: [Option<SocketAddr>; N] = [None; N];
    loop {
        let addresses = *wanted.borrow_and_update();
        let mut is_tried_again = false;
        for (index, (name, handler)) in handlers.iter().enumerate() {
            let ServerAddress { address, hard_fail } = addresses[index];
            if running[index].as_ref().map(|server| server.address) == address {
                continue;
            }
            match address.map(|address| (address, bind(address, &mut running, &addresses))) {
                None => running[index] = None,
                Some((address, Ok(listener))) => {
                    tracing::debug!(name, %address, "Listening");
                    let (handler, connections) = (Arc::clone(handler), Arc::clone(&connections));
                    let serving = Box::pin(accept(name, listener, handler, connections));
                    running[index] = Some(Server { address, serving });
                    retried[index] = None;
                }
                Some((address, Err(error))) => {
                    let err = ErrorChain(&error);
                    tracing::error!(name, %address, %err, "Failed to start server");
                    if hard_fail && retried[index] != Some(address) {
                        return (name, address, error);
                    }
                    retried[index] = Some(address);
                    is_tried_again = true;
                }
            }
        }
        bound.send_replace(running.each_ref().map(|server| Some(server.as_ref()?.address)));
        let serving = poll_fn(|context| {
            for server in running.iter_mut().flatten() {
                let _ = server.serving.as_mut().poll(context);
            }
            Poll::<Infallible>::Pending
        });
        let again = async {
            match is_tried_again {
                true => time::sleep(RETRY).await,
                false => pending().await,
            }
        };
        tokio::select! {
            // After an error, the address cannot change any more.
            Ok(()) = wanted.changed() => {}
            () = again => {}
            never = serving => match never {},
        }
    }
}

/// Whether one socket at most can listen at these addresses.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_wide = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (is_wide || one.ip() == other.ip())
}

/// Binds the address. A running server that is to move is closed if it is in the way, and the
/// address is in use.
fn bind<const N: usize>(
    address: SocketAddr,
    running: &mut [Option<Server>; N],
    wanted: &[ServerAddress; N],
) -> io::Result<TcpListener> {
    let error = match listen::bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        result => return result,
    };
    let mut is_less = false;
    for (running, wanted) in running.iter_mut().zip(wanted) {
        let moves = |server: &mut Server| {
            overlap(server.address, address) && Some(server.address) != wanted.address
        };
        is_less |= running.take_if(moves).is_some();
    }
    if is_less { listen::bind(address) } else { Err(error) }
}

/// Tries the addresses that have to be bound, unless a server that moves may be in the way. Returns
/// the address that cannot be bound, and the error.
pub fn check<const N: usize>(
    wanted: &[ServerAddress; N],
    bound: &Bound<N>,
) -> Result<(), (SocketAddr, io::Error)> {
    for (index, to) in wanted.iter().enumerate().filter(|(_, to)| to.hard_fail) {
        let Some(address) = to.address else { continue };
        let overlaps = |it: Option<SocketAddr>| it.is_some_and(|it| overlap(it, address));
        if wanted[..index].iter().any(|it| overlaps(it.address)) {
            return Err((address, io::ErrorKind::AddrInUse.into()));
        }
        if bound[index] == to.address {
            continue;
        }
        let moves = || {
            let pairs = bound.iter().zip(wanted);
            pairs.filter(|(from, to)| **from != to.address).any(|(from, _)| overlaps(*from))
        };
        match listen::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && moves() => {}
            result => drop(result.map_err(|error| (address, error))?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        array,
        net::IpAddr,
        sync::atomic::{AtomicU8, Ordering},
    };

    use bytes::Bytes;
    use hyper::Request;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        task::JoinHandle,
    };

    use super::*;
    use crate::observability::http::{Answer, connections::Limits};

    struct Hello(usize);

    impl Handler for Hello {
        fn answer(&self, _: &Request<Bytes>) -> Answer {
            Answer::new(Bytes::from(format!("hello from {}", self.0)).into())
        }
    }

    async fn ask(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// Waits until `address` answers, or until `address` does not answer.
    async fn expect(address: SocketAddr, answers: bool) {
        expect_of(address, answers.then_some("hello from")).await;
    }

    async fn expect_of(address: SocketAddr, answer: Option<&str>) {
        let is_as_expected = |found: io::Result<String>| match answer {
            Some(answer) => found.is_ok_and(|text| text.contains(answer)),
            None => !found.is_ok_and(|text| text.contains("hello from")),
        };
        let fulfilled = async {
            while !is_as_expected(ask(address).await) {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(Duration::from_secs(20), fulfilled).await.expect("it stays as it is");
    }

    /// Returns addresses whose ports were free just now at every address of the host. Each call has
    /// its own loopback address, so that no other test takes a port that was closed.
    fn free() -> [SocketAddr; 2] {
        static NEXT: AtomicU8 = AtomicU8::new(2);
        let [.., high, low] = std::process::id().to_be_bytes();
        let own = IpAddr::from([127, high, low, NEXT.fetch_add(1, Ordering::Relaxed)]);
        let listeners = [(); 2].map(|()| std::net::TcpListener::bind("0.0.0.0:0").unwrap());
        listeners.map(|listener| SocketAddr::new(own, listener.local_addr().unwrap().port()))
    }

    fn retried(address: SocketAddr) -> ServerAddress {
        ServerAddress { address: Some(address), hard_fail: false }
    }

    type Task = JoinHandle<(&'static str, SocketAddr, io::Error)>;

    fn start<const N: usize>(
        first: [ServerAddress; N],
    ) -> (watch::Sender<[ServerAddress; N]>, Task) {
        let (sender, receiver) = watch::channel(first);
        let connections = Connections::new(Limits::new(1024));
        let handlers = array::from_fn(|index| ("test", Arc::new(Hello(index)) as Arc<dyn Handler>));
        let bound = watch::Sender::new([None; N]);
        (sender, tokio::spawn(serve(receiver, handlers, connections, bound)))
    }

    #[tokio::test]
    async fn it_gets_out_of_its_own_way() {
        let [one, _] = free();
        let wide = SocketAddr::from(([0, 0, 0, 0], one.port()));
        let other = SocketAddr::from(([127, 0, 0, 2], one.port()));
        let (addresses, task) = start([ServerAddress { hard_fail: true, ..retried(wide) }]);
        expect(other, true).await;
        addresses.send_replace([ServerAddress { hard_fail: true, ..retried(one) }]);
        expect(other, false).await;
        expect(one, true).await;
        addresses.send_replace([ServerAddress { hard_fail: true, ..retried(wide) }]);
        expect(other, true).await;
        task.abort();
    }

    #[tokio::test]
    async fn servers_exchange_their_addresses() {
        let [one, two] = free();
        let hard = |address| ServerAddress { hard_fail: true, ..retried(address) };
        let (addresses, task) = start([hard(one), hard(two)]);
        expect_of(two, Some("hello from 1")).await;
        let none = ServerAddress { address: None, ..hard(one) };
        for (next, at_one, at_two) in [
            ([hard(two), hard(one)], "hello from 1", Some("hello from 0")),
            ([hard(one), none], "hello from 0", None),
            ([hard(one), hard(two)], "hello from 0", Some("hello from 1")),
            ([hard(one), none], "hello from 0", None),
        ] {
            check(&next, &addresses.borrow().map(|from| from.address)).unwrap();
            addresses.send_replace(next);
            expect_of(one, Some(at_one)).await;
            expect_of(two, at_two).await;
        }
        // One place for two servers, or that of a server that stays.
        let wide = SocketAddr::from(([0, 0, 0, 0], two.port()));
        assert_eq!(check(&[hard(wide), hard(two)], &[Some(one), None]).unwrap_err().0, two);
        assert_eq!(check(&[hard(one), hard(one)], &[Some(one), Some(two)]).unwrap_err().0, one);
        task.abort();
    }

    #[tokio::test]
    async fn an_address_that_is_in_vain_retried_is_no_place_for_a_hard_failure() {
        let [one, two] = free();
        let _blocker = std::net::TcpListener::bind(two).unwrap();
        let (_addresses, wanted) = watch::channel([retried(one), retried(two)]);
        let (bound, mut found) = watch::channel([None; 2]);
        let connections = Connections::new(Limits::new(1024));
        let handlers = array::from_fn(|index| ("test", Arc::new(Hello(index)) as Arc<dyn Handler>));
        let task = tokio::spawn(serve(wanted, handlers, connections, bound));
        let found = *found.wait_for(|bound| *bound != [None; 2]).await.unwrap();
        let hard = |address| ServerAddress { hard_fail: true, ..retried(address) };
        let (address, error) = check(&[hard(one), hard(two)], &found).unwrap_err();
        assert_eq!((address, error.kind()), (two, io::ErrorKind::AddrInUse));
        check(&[hard(one), retried(two)], &found).unwrap();
        task.abort();
    }

    #[tokio::test]
    async fn the_last_address_stays_until_the_next_can_be_bound() {
        let [one, two] = free();
        let blocker = std::net::TcpListener::bind(two).unwrap();
        let (addresses, task) = start([retried(one)]);
        expect(one, true).await;
        for hard_fail in [false, true] {
            addresses.send_replace([ServerAddress { hard_fail, ..retried(two) }]);
            time::sleep(Duration::from_millis(200)).await;
            expect(one, true).await;
        }
        drop(blocker);
        expect(two, true).await;
        expect(one, false).await;
        // The address cannot change any more.
        drop(addresses);
        expect(two, true).await;
        task.abort();
    }

    #[tokio::test]
    async fn an_address_in_use_is_the_end_if_it_should_be() {
        let [one, two] = free();
        let _blocker = std::net::TcpListener::bind(two).unwrap();
        let (addresses, task) = start([retried(one)]);
        expect(one, true).await;
        addresses.send_replace([ServerAddress { hard_fail: true, ..retried(two) }]);
        let ended = time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
        assert_eq!((ended.1, ended.2.kind()), (two, io::ErrorKind::AddrInUse));
    }
}
