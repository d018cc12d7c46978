//! Endpoints learn the client's address by the PROXY protocol.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use super::{service, slice, start};

/// The client's word after the header.
const WORD: &[u8] = b"hello\n";

/// Connects from the client's address to the Service, and returns what the endpoint gets, with the port
/// that the client has.
fn received(version: &str) -> (Vec<u8>, u16) {
    let annotation = format!("switchyard/proxy-protocol: {version}");
    let manifests = service(&annotation) + &slice("pods", 9000, &["10.244.1.10"]);
    let rig = start(version, manifests);
    let pod = rig.place("a").unwrap().namespace.clone();
    let listener = pod.run(|| TcpListener::bind("0.0.0.0:9000").unwrap()).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    let client = rig.place("client").unwrap().namespace.clone();
    let port = client
        .run(|| {
            let mut stream = TcpStream::connect("10.96.0.10:80").unwrap();
            stream.write_all(WORD).unwrap();
            stream.local_addr().unwrap().port()
        })
        .unwrap();
    (server.join().unwrap(), port)
}

#[test]
fn version_1_has_the_clients_address_and_the_services() {
    let (all, port) = received("v1");
    let expected = format!("PROXY TCP4 192.168.10.100 10.96.0.10 {port} 80\r\nhello\n");
    assert_eq!(String::from_utf8_lossy(&all), expected);
}

#[test]
fn version_2_has_the_clients_address_and_the_services() {
    let (all, port) = received("v2");
    let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    expected.extend([192, 168, 10, 100, 10, 96, 0, 10]);
    expected.extend(port.to_be_bytes());
    expected.extend(80u16.to_be_bytes());
    expected.extend(WORD);
    assert_eq!(all, expected);
}
