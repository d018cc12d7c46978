//! The endpoints' servers, all in one process.

use std::{net::Ipv4Addr, net::UdpSocket, thread};

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

use crate::hosts::{self, BULK, ECHO, SERVERS, SHORT, server};

/// Is the process of the endpoints.
pub fn run() {
    test_netns::enter_new_namespace();
    let runtime = Runtime::new().expect("threads");
    hosts::serve(|request, _| {
        assert_eq!(request, "network");
        hosts::join("10.2.0.1", (0..SERVERS).map(server));
        (0..SERVERS).for_each(|number| udp(server(number)));
        let ports = [BULK, SHORT, ECHO].map(|port| {
            let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
            (port, runtime.block_on(bound).expect("the port is free"))
        });
        for (port, listener) in ports {
            runtime.spawn(tcp(port, listener));
        }
        Vec::new()
    });
    runtime.shutdown_background();
}

async fn tcp(port: u16, listener: TcpListener) {
    while let Ok((client, _)) = listener.accept().await {
        let _ = client.set_nodelay(true);
        tokio::spawn(async move {
            // The client closes when it has enough.
            let _ = match port {
                BULK => bulk(client).await,
                SHORT => short(client).await,
                _ => echo(client).await,
            };
        });
    }
}

async fn bulk(mut client: TcpStream) -> std::io::Result<()> {
    let bytes = vec![7; 256 * 1024];
    loop {
        client.write_all(&bytes).await?;
    }
}

async fn short(mut client: TcpStream) -> std::io::Result<()> {
    let byte = client.read_u8().await?;
    client.write_u8(byte).await
}

async fn echo(mut client: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 256];
    loop {
        let length = client.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        client.write_all(&buffer[..length]).await?;
    }
}

fn udp(address: Ipv4Addr) {
    let socket = UdpSocket::bind((address, ECHO)).expect("the port is free");
    let _ = SockRef::from(&socket).set_recv_buffer_size(1 << 22);
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], client);
        }
    });
}
