//! Endpoints learn the client's address by the PROXY protocol.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use super::{service, slice, start};

/// The two versions differ in nothing but the bytes, which the forwarder's tests look at.
#[test]
fn version_1_has_the_clients_address_and_the_services() {
    let manifests =
        service("switchyard/proxy-protocol: v1") + &slice("pods", 9000, &["10.244.1.10"]);
    let rig = start("proxy-protocol", manifests);
    let pod = rig.place("a").unwrap().namespace.clone();
    let listener = pod.run(|| TcpListener::bind("0.0.0.0:9000").unwrap()).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        all
    });
    let client = rig.place("client").unwrap().namespace.clone();
    let port = client
        .run(|| {
            let mut stream = TcpStream::connect("10.96.0.10:80").unwrap();
            stream.write_all(b"hello\n").unwrap();
            stream.local_addr().unwrap().port()
        })
        .unwrap();
    let expected = format!("PROXY TCP4 192.168.10.100 10.96.0.10 {port} 80\r\nhello\n");
    assert_eq!(server.join().unwrap(), expected);
}
