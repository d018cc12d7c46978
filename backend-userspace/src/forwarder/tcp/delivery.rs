//! The wait for bytes that are on their way to an end when nothing more is copied.

use std::{
    io,
    time::{Duration, Instant},
};

use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream, time::timeout};

use super::ready_io::with_buffer;
use crate::forwarder::shared::Shared;

/// The end of the wait for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The end has acknowledged everything that was sent.
    Complete,
    /// The end has closed before that.
    Closed,
    /// The end is gone, or does not answer.
    Failed,
}

/// Waits until an end, which has sent everything, has everything that was sent.
pub(super) async fn taken(shared: &Shared, to: &TcpStream) -> Delivery {
    acknowledged(shared, to, false).await
}

/// Waits until an end has everything that was sent, or has closed. What the end sends is discarded,
/// as the other end is gone.
pub(super) async fn delivered(shared: &Shared, to: &TcpStream) -> Delivery {
    acknowledged(shared, to, true).await
}

async fn acknowledged(shared: &Shared, to: &TcpStream, discards: bool) -> Delivery {
    let (platform, dead_after) = (&*shared.platform, shared.config.dead_after);
    let begun = Instant::now();
    // No event shows that everything is acknowledged.
    let mut pause = Duration::from_millis(1);
    loop {
        let socket = SockRef::from(to);
        match platform.has_acknowledged(&socket) {
            Some(true) => return Delivery::Complete,
            Some(false) if platform.is_silent(&socket, dead_after) => return Delivery::Failed,
            None if begun.elapsed() >= dead_after => return Delivery::Failed,
            _ => {}
        }
        let over = async {
            if discards {
                return discard(to).await;
            }
            let _ = to.ready(Interest::ERROR).await;
            Delivery::Failed
        };
        if let Ok(over) = timeout(pause, over).await {
            return over;
        }
        pause = (2 * pause).min(Duration::from_secs(1));
    }
}

async fn discard(from: &TcpStream) -> Delivery {
    while from.readable().await.is_ok() {
        match with_buffer(|buffer| from.try_read(buffer)) {
            Ok(0) => return Delivery::Closed,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
            // A socket that stays ready is never waited for: others have their turn.
            _ => tokio::task::yield_now().await,
        }
    }
    Delivery::Failed
}
