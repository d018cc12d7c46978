//! Serving at an address that may become another one.

use std::{
    convert::Infallible,
    future::{Future, pending},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpListener, sync::watch, time};

use super::{Handler, listen};

/// How long to wait before an address that could not be bound is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Where to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// At this address, if at any.
    pub address: Option<SocketAddr>,
    /// Whether that it cannot be bound is the end. If not, it is tried again.
    pub hard_fail: bool,
}

/// A server: it serves while it is polled, and its address is free when it is dropped.
struct Server {
    address: SocketAddr,
    serving: Pin<Box<dyn Future<Output = Infallible> + Send>>,
}

/// Serves `handler` where `place` says, for ever. A new address is bound before the last one is
/// given up; only if they are in each other's way (`0.0.0.0:1` and `127.0.0.1:1`), the last one goes
/// first. Connections to it end.
pub async fn serve(
    name: &'static str,
    mut place: watch::Receiver<Place>,
    handler: Arc<dyn Handler>,
) -> io::Error {
    let mut running: Option<Server> = None;
    loop {
        let Place { address, hard_fail } = *place.borrow_and_update();
        let mut is_tried_again = false;
        if running.as_ref().map(|server| server.address) != address {
            match address.map(|address| (address, bind(address, &mut running))) {
                None => running = None,
                Some((address, Ok(listener))) => {
                    tracing::debug!(name, %address, "Listening");
                    let serving = Box::pin(accept(name, listener, Arc::clone(&handler)));
                    running = Some(Server { address, serving });
                }
                Some((address, Err(error))) => {
                    tracing::error!(name, %address, err = %error, "Failed to start server");
                    if hard_fail {
                        return error;
                    }
                    is_tried_again = true;
                }
            }
        }
        let serving = async {
            match &mut running {
                Some(server) => server.serving.as_mut().await,
                None => pending().await,
            }
        };
        let again = async {
            match is_tried_again {
                true => time::sleep(RETRY).await,
                false => pending().await,
            }
        };
        tokio::select! {
            // An error means that nobody will say another place.
            Ok(()) = place.changed() => {}
            () = again => {}
            never = serving => match never {},
        }
    }
}

async fn accept(
    name: &'static str,
    listener: TcpListener,
    handler: Arc<dyn Handler>,
) -> Infallible {
    listen::accept(name, listener, handler).await
}

/// Binds the address. A running server that may be in the way is closed.
fn bind(address: SocketAddr, running: &mut Option<Server>) -> io::Result<TcpListener> {
    match listen::bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            match running.take_if(|server| server.address.port() == address.port()) {
                Some(server) => {
                    drop(server);
                    listen::bind(address)
                }
                None => Err(error),
            }
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::Request;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        task::JoinHandle,
    };

    use super::*;
    use crate::http::Answer;

    struct Hello;

    impl Handler for Hello {
        fn answer(&self, _: &Request<Bytes>) -> Answer {
            Answer::new(Bytes::from_static(b"hello").into())
        }
    }

    async fn ask(address: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// Waits until `address` answers, or no longer does.
    async fn expect(address: SocketAddr, answers: bool) {
        let fulfilled = async {
            while ask(address).await.is_ok_and(|text| text.ends_with("hello")) != answers {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        time::timeout(Duration::from_secs(20), fulfilled).await.expect("it stays as it is");
    }

    /// Addresses that were free a moment ago.
    fn free() -> [SocketAddr; 2] {
        let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        listeners.map(|listener| listener.local_addr().unwrap())
    }

    fn place(address: SocketAddr) -> Place {
        Place { address: Some(address), hard_fail: false }
    }

    fn start(first: Place) -> (watch::Sender<Place>, JoinHandle<io::Error>) {
        let (sender, receiver) = watch::channel(first);
        (sender, tokio::spawn(serve("test", receiver, Arc::new(Hello))))
    }

    #[tokio::test]
    async fn it_moves() {
        let [one, two] = free();
        let (places, task) = start(place(one));
        expect(one, true).await;
        places.send_replace(place(two));
        expect(two, true).await;
        expect(one, false).await;
        places.send_replace(Place { address: None, hard_fail: true });
        expect(two, false).await;
        places.send_replace(place(one));
        expect(one, true).await;
        // Nobody will say anything else.
        drop(places);
        expect(one, true).await;
        task.abort();
    }

    #[tokio::test]
    async fn it_gets_out_of_its_own_way() {
        let [one, _] = free();
        let wide = SocketAddr::from(([0, 0, 0, 0], one.port()));
        let other = SocketAddr::from(([127, 0, 0, 2], one.port()));
        let (places, task) = start(Place { hard_fail: true, ..place(wide) });
        expect(other, true).await;
        places.send_replace(Place { hard_fail: true, ..place(one) });
        expect(other, false).await;
        expect(one, true).await;
        places.send_replace(Place { hard_fail: true, ..place(wide) });
        expect(other, true).await;
        task.abort();
    }

    #[tokio::test]
    async fn the_last_address_stays_until_the_next_can_be_bound() {
        let [one, two] = free();
        let blocker = std::net::TcpListener::bind(two).unwrap();
        let (places, task) = start(place(one));
        expect(one, true).await;
        places.send_replace(place(two));
        time::sleep(Duration::from_millis(200)).await;
        expect(one, true).await;
        drop(blocker);
        expect(two, true).await;
        expect(one, false).await;
        task.abort();
    }

    #[tokio::test]
    async fn an_address_in_use_is_the_end_if_it_should_be() {
        let [one, two] = free();
        let _blocker = std::net::TcpListener::bind(two).unwrap();
        let (places, task) = start(place(one));
        expect(one, true).await;
        places.send_replace(Place { hard_fail: true, ..place(two) });
        let error = time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn an_address_in_use_is_tried_again() {
        let [one, _] = free();
        let blocker = std::net::TcpListener::bind(one).unwrap();
        time::pause();
        let (_places, task) = start(place(one));
        time::sleep(RETRY / 2).await;
        assert!(!task.is_finished());
        drop(blocker);
        time::sleep(RETRY).await;
        time::resume();
        expect(one, true).await;
        task.abort();
    }
}
