//! A thread that asks for explanations, so that one who does not answer holds up nothing.

use std::{
    collections::VecDeque,
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use super::{
    forecast::{Compared, Forecasts},
    owner::OwnChains,
    packet::Packet,
};

/// Why a packet is not compared that waited for an answer to the end.
const LATE: &str = "there was no answer before the end";

/// Compares packets in their order.
pub struct Judge {
    own: OwnChains,
    packets: Sender<Packet>,
    compared: Receiver<Compared>,
    /// The packets whose result has not come.
    waiting: VecDeque<Packet>,
}

impl Judge {
    /// Starts the thread. `own` are the proxy's chains by the configuration.
    pub fn start(mut forecasts: Forecasts, own: OwnChains) -> Self {
        let (packets, to_compare) = mpsc::channel::<Packet>();
        let (results, compared) = mpsc::channel();
        let configured = own.clone();
        // It ends when nothing sends packets or takes results any more, or with the process.
        thread::spawn(move || {
            let mut all = to_compare.into_iter().map(|packet| forecasts.compare(&packet, &own));
            all.try_for_each(|result| results.send(result))
        });
        Self { own: configured, packets, compared, waiting: VecDeque::new() }
    }

    /// Has packets be compared.
    pub fn ask(&mut self, packets: Vec<Packet>) {
        for packet in packets {
            // Without a reader, there are no results either, which is found out below.
            let _ = self.packets.send(packet.clone());
            self.waiting.push_back(packet);
        }
    }

    /// Takes the packets that were compared; with `all`, the others as well.
    pub fn take(&mut self, all: bool) -> Vec<(Packet, Compared)> {
        let mut taken = Vec::new();
        while let Some(packet) = self.waiting.pop_front() {
            match self.compared.try_recv() {
                Ok(compared) => taken.push((packet, compared)),
                Err(_) if all => taken.push((packet, Compared::not(LATE, &self.own))),
                Err(_) => {
                    self.waiting.push_front(packet);
                    break;
                }
            }
        }
        taken
    }

    /// Whether no packet waits.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }
}
