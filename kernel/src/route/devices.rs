//! The names of all devices, as they come and go.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{sleep, timeout};

use super::list::abi::link;
use crate::netlink::{Awaited, Error, Socket, flags};

/// `RTNLGRP_LINK`
const GROUP: i32 = 1;
/// The time between the first of a burst of changes and the reading of the list.
const SETTLE: Duration = Duration::from_millis(100);
/// The list is read that often even if nothing is announced, in case an announcement was lost.
const REFRESH: Duration = Duration::from_secs(60);

/// Follows the devices of the network namespace of the thread that opens it.
#[derive(Debug)]
pub struct DeviceFollower {
    announcements: Awaited,
    requests: Socket,
}

impl DeviceFollower {
    /// Opens a follower.
    ///
    /// # Errors
    /// If the kernel refuses sockets.
    pub fn open() -> Result<Self, Error> {
        let announcements = Socket::open(libc::NETLINK_ROUTE)?;
        announcements.join(GROUP)?;
        let requests = Socket::open(libc::NETLINK_ROUTE)?;
        Ok(Self { announcements: Awaited::new(announcements), requests })
    }

    /// Lists the names of the devices, by their indices.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn list(&mut self) -> Result<BTreeMap<u32, String>, Error> {
        self.requests.dump(
            |writer, sequence| {
                writer
                    .message(libc::RTM_GETLINK, flags::DUMP, sequence, |w| w.raw(&link::NO_INDEX));
            },
            |found: &mut BTreeMap<u32, String>, message| {
                let index = message.payload.get(4..).and_then(|rest| rest.first_chunk::<4>());
                let name = message.attributes(link::HEADER).text(link::NAME);
                let (index, name) = index.zip(name).ok_or(Error::Malformed("a device"))?;
                found.insert(u32::from_ne_bytes(*index), name.to_owned());
                Ok(())
            },
        )
    }

    /// Waits until a device may have come, gone or changed.
    ///
    /// # Errors
    /// If the kernel's announcements cannot be received.
    pub async fn changed(&mut self) -> Result<(), Error> {
        let announced = |message: &crate::netlink::Message<'_>| {
            matches!(message.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK)
        };
        if let Ok(announced) = timeout(REFRESH, self.announcements.announced(announced)).await {
            announced?;
            sleep(SETTLE).await;
        }
        Ok(())
    }
}
