//! Connections and flows that stay open between questions.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpStream, UdpSocket},
    time::Duration,
};

use crate::{
    echo::Answer,
    probe::{Outcome, Probe},
    protocol::Target,
};

/// A connection to an echo server that stays open between questions; with UDP, a flow: all its
/// datagrams have the same source port.
#[derive(Debug)]
pub struct Conversation(Channel);

#[derive(Debug)]
enum Channel {
    Stream(BufReader<TcpStream>),
    Datagrams(UdpSocket),
}

impl Conversation {
    /// Opens a connection; call inside a namespace.
    pub fn open(target: Target, timeout: Duration) -> io::Result<Self> {
        Probe { timeout, ..Probe::new(target) }.converse()
    }

    pub(crate) fn of_stream(stream: TcpStream, timeout: Duration) -> io::Result<Self> {
        // Only a matter of speed, and not an option of SCTP's.
        let _ = stream.set_nodelay(true);
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self(Channel::Stream(BufReader::new(stream))))
    }

    pub(crate) fn of_datagrams(socket: UdpSocket, timeout: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(timeout))?;
        Ok(Self(Channel::Datagrams(socket)))
    }

    /// Asks once, and returns the line that came back.
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

    /// Asks once, and says what came of it. With UDP, an answer that comes after the time for it is
    /// taken for the next question's.
    pub fn outcome(&mut self) -> Outcome {
        match self.ask() {
            Ok(line) => Answer::parse(&line).map_or(Outcome::Other(line), Outcome::from),
            Err(error) => Outcome::of_error(&error),
        }
    }
}
