//! SCTP, where the kernel has it.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use socket2::{Domain, Socket, Type};
use switchyard_core::model::Protocol;
use test_netns::skipped;

use crate::forwarder::support::*;

const NO_SCTP: &str = "no SCTP sockets in this kernel";

fn socket() -> Option<Socket> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(socket2::Protocol::from(132))).ok()
}

/// Starts an endpoint that sends its name, then what it receives, until the client ends.
fn echo_sctp(socket: Socket) -> SocketAddr {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(16).unwrap();
    let socket = TcpListener::from(socket);
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        for stream in socket.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buffer = vec![0; 100_000];
                stream.write_all(b"a").unwrap();
                while let Ok(size @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..size]).unwrap();
                }
            });
        }
    });
    address
}

#[test]
fn sctp_is_forwarded_or_unsupported() {
    let forwarder = forwarder(|_| {});
    let id = id("web", Protocol::Sctp);
    let Some(server) = socket() else {
        forwarder.serve(&Arc::new(service(&id, &[])));
        let error = forwarder.listen(&listener(&id)).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("SCTP"), "{error}");
        skipped(NO_SCTP);
        return;
    };
    forwarder.serve(&Arc::new(service(&id, &[echo_sctp(server)])));
    let to = forwarder.listen(&listener(&id)).unwrap();

    let client = socket().unwrap();
    client.connect(&to.into()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = TcpStream::from(client);
    expect(&mut client, "a");
    // Messages stay messages, however many there are at a time.
    for _ in 0..20 {
        client.write_all(&[1; 1000]).unwrap();
        client.write_all(&[2; 20_000]).unwrap();
    }
    let mut buffer = vec![0; 100_000];
    for _ in 0..20 {
        assert_eq!(client.read(&mut buffer).unwrap(), 1000);
        assert_eq!(client.read(&mut buffer).unwrap(), 20_000);
    }
    end(&client);
    until("the connection ends", || forwarder.usage().connections == 0);
}

#[test]
fn an_association_that_no_endpoint_takes_is_closed() {
    let Some(client) = socket() else { return skipped(NO_SCTP) };
    let forwarder = forwarder(|_| {});
    let id = id("web", Protocol::Sctp);
    forwarder.serve(&Arc::new(service(&id, &[])));
    let to = forwarder.listen(&listener(&id)).unwrap();
    client.connect(&to.into()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let read = TcpStream::from(client).read(&mut [0; 16]);
    assert!(matches!(&read, Ok(0) | Err(_)), "{read:?}");
    assert!(!read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it is still open");
}

#[cfg(target_os = "linux")]
mod messages {
    use std::{io::IoSlice, mem::MaybeUninit, os::fd::AsRawFd};

    use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut};

    use super::*;

    /// The control data of a message that is sent with a payload protocol identifier, unordered.
    fn sent(protocol: u32) -> Vec<u8> {
        let header = [
            32usize.to_ne_bytes().to_vec(),
            132i32.to_ne_bytes().into(),
            2i32.to_ne_bytes().into(),
        ];
        let stream_and_flags = [[0u16, 1].map(u16::to_ne_bytes).concat()];
        let rest = [protocol.to_be_bytes(), [0; 4], [0; 4]].concat();
        [header.concat(), stream_and_flags.concat(), rest].concat()
    }

    #[test]
    fn they_keep_their_protocol_and_that_they_are_unordered() {
        let (Some(server), Some(client)) = (socket(), socket()) else { return skipped(NO_SCTP) };
        let forwarder = forwarder(|_| {});
        let id = id("amf", Protocol::Sctp);
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        server.bind(&any.into()).unwrap();
        server.listen(16).unwrap();
        let at = server.local_addr().unwrap().as_socket().unwrap();
        forwarder.serve(&Arc::new(service(&id, &[at])));
        client.connect(&forwarder.listen(&listener(&id)).unwrap().into()).unwrap();
        let (control, bytes) = (sent(60), [IoSlice::new(b"NGAP")]);
        let header = MsgHdr::new().with_buffers(&bytes).with_control(&control);
        client.sendmsg(&header, 0).unwrap();

        let (endpoint, _) = server.accept().unwrap();
        endpoint.set_read_timeout(Some(PATIENCE)).unwrap();
        let on = 1i32.to_ne_bytes();
        // SAFETY: the kernel reads four bytes, which are those of `on`.
        let set = unsafe { libc::setsockopt(endpoint.as_raw_fd(), 132, 32, on.as_ptr().cast(), 4) };
        assert_eq!(set, 0, "SCTP_RECVRCVINFO");
        let (mut bytes, mut control) = ([MaybeUninit::new(0); 16], [MaybeUninit::new(0); 128]);
        let mut buffers = [MaybeUninitSlice::new(&mut bytes)];
        let mut header = MsgHdrMut::new().with_buffers(&mut buffers).with_control(&mut control);
        assert_eq!(endpoint.recvmsg(&mut header, 0).unwrap(), 4);
        // SAFETY: the bytes were initialised above, and the kernel writes bytes only.
        let control = control.map(|byte| unsafe { byte.assume_init() });
        assert_eq!(control[20..22], 1u16.to_ne_bytes(), "unordered");
        assert_eq!(control[24..28], 60u32.to_be_bytes());
    }
}
