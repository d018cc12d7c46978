//! Connections and flows that stay open between requests.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpStream, UdpSocket},
    time::Duration,
};

use crate::{echo::Answer, outcome::Outcome};

/// A connection to an echo server that stays open between requests; with UDP, a flow whose
/// datagrams all have the same source port.
#[derive(Debug)]
pub struct Conversation(Channel);

#[derive(Debug)]
enum Channel {
    Stream(BufReader<TcpStream>),
    Datagrams(UdpSocket),
}

impl Conversation {
    /// A conversation over a connected stream.
    pub(crate) fn from_stream(stream: TcpStream, timeout: Duration) -> io::Result<Self> {
        // Only a matter of speed, and not an option of SCTP's.
        let _ = stream.set_nodelay(true);
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self(Channel::Stream(BufReader::new(stream))))
    }

    /// A flow over a connected UDP socket.
    pub(crate) fn from_datagrams(socket: UdpSocket, timeout: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(timeout))?;
        Ok(Self(Channel::Datagrams(socket)))
    }

    /// Makes a request, and returns the line that came back.
    pub fn ask(&mut self) -> io::Result<String> {
        match &mut self.0 {
            Channel::Stream(stream) => {
                stream.get_mut().write_all(b"who\n")?;
                let mut line = String::new();
                stream.by_ref().take(512).read_line(&mut line)?;
                match line.ends_with('\n') {
                    true => Ok(line),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            Channel::Datagrams(socket) => {
                socket.send(b"who\n")?;
                let mut buffer = [0; 512];
                let length = socket.recv(&mut buffer)?;
                Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
            }
        }
    }

    /// Makes a request, and returns its outcome. With UDP, an answer that comes after the timeout
    /// is taken for the answer to the next request.
    pub fn outcome(&mut self) -> Outcome {
        match self.ask() {
            Ok(line) => Answer::parse(&line).map_or(Outcome::Other(line), Outcome::from),
            Err(error) => Outcome::from_error(&error),
        }
    }
}
