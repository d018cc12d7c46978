//! Packets on their way: the events of each, by the base chains that it passed.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use switchyard_kernel::nftables::{
    gates::ChainPath,
    trace::{
        BaseChainInfo, Headers, MARKING, RECEIVED, RuleInfo, SENT, TraceEvent, TraceStep,
        TraceVerdict,
    },
};

use super::book::Book;

/// The beginning of the names of the tables of all traces.
pub const TABLES: &str = "switchyard-trace-";
/// The time without events after which a packet is at its end.
pub const QUIET: Duration = Duration::from_millis(300);
/// The most base chains, and chains in each of them, that are kept of a packet.
const MOST: usize = 64;

#[derive(Clone, Debug)]
pub struct Packet {
    /// The time of the first event.
    pub at: Timestamp,
    /// The headers as it was marked.
    pub first: Headers,
    /// The headers as they were seen last.
    pub last: Headers,
    /// The index of the interface through which it came; `None` if the node sent it.
    pub input: Option<u32>,
    /// Its mark as it was routed, as far as chains have seen it.
    pub mark: u32,
    /// The base chains of others, in the order of its way.
    pub passes: Vec<Pass>,
    pub fate: Fate,
    /// Whether the kernel may have left out some of its events.
    pub is_incomplete: bool,
    /// The kernel's number of it, which changes if it comes back through the loopback interface;
    /// `None` once another packet has the number.
    id: Option<u32>,
    touched: Instant,
}

/// A base chain that a packet passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    pub base: ChainPath,
    /// Its hook, priority and type; `None` if it is gone.
    pub info: Option<BaseChainInfo>,
    /// The other chains, in the order of the first visit.
    pub chains: Vec<String>,
    /// The rule that decided, with its chain; `None` if the policy did.
    pub rule: Option<(String, u64, RuleInfo)>,
    /// The verdict, in the words of nft; empty if it was not seen.
    pub verdict: &'static str,
    /// The headers that the packet has next, if they are others.
    pub then: Option<Headers>,
}

/// The end of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was sent through the interface with this index.
    Sent(Option<u32>),
    /// The node itself received it.
    Received,
    /// The last of the passes dropped it.
    Dropped,
    /// A rule handed it to a program, or the kernel took it in another way.
    Taken,
    /// It has not been seen again.
    Unseen,
}

impl Pass {
    /// The chain that decided: that of the rule, or the base chain by its policy.
    pub fn decider(&self) -> ChainPath {
        let chain = self.rule.as_ref().map_or(&self.base.chain, |(chain, ..)| chain);
        ChainPath::new(self.base.family, &self.base.table, chain)
    }

    /// Whether the rule that decided answers the sender.
    pub fn rejects(&self) -> bool {
        let rejects = |word: &String| word.eq_ignore_ascii_case("reject");
        self.rule.as_ref().is_some_and(|(_, _, rule)| rule.actions.iter().any(rejects))
    }
}

/// The packets that are on their way.
pub struct Packets {
    /// The name of the table that marks them.
    table: String,
    /// The number that may still begin.
    left: usize,
    packets: Vec<Packet>,
    /// Whether events were lost, and some from before may still come: the kernel reports a loss
    /// first, and adds no event before all that wait were read.
    is_losing: bool,
}

impl Packets {
    /// None yet, and not more than so many; `table` marks them.
    pub fn new(table: String, most: usize) -> Self {
        Self { table, left: most, packets: Vec::new(), is_losing: false }
    }

    /// Has no further packet begin.
    pub fn stop(&mut self) {
        self.left = 0;
    }

    /// Events were lost: packets on their way may lack some, and those whose events wait, too.
    pub fn lose(&mut self) {
        self.is_losing = true;
        self.packets.iter_mut().for_each(|packet| packet.is_incomplete = true);
    }

    /// All events that waited were read.
    pub fn caught_up(&mut self) {
        self.is_losing = false;
    }

    pub fn add(&mut self, event: &TraceEvent, book: &mut Book) {
        let is_marking = event.chain.table == self.table;
        if !is_marking && event.chain.table.starts_with(TABLES) {
            // Of another trace, which decides nothing.
            return;
        }
        let chain = event.chain.chain.as_str();
        if is_marking && MARKING.contains(&chain) && matches!(event.step, TraceStep::Rule { .. }) {
            return self.begin(event);
        }
        let Some(packet) = self.find(event) else { return };
        packet.touched = Instant::now();
        if let Some(headers) = event.headers.filter(|headers| *headers != packet.last) {
            packet.last = headers;
            if let Some(pass) = packet.passes.last_mut() {
                pass.then = Some(headers);
            }
        }
        match chain {
            RECEIVED if is_marking => packet.fate = Fate::Received,
            SENT if is_marking && event.headers.is_some() => {
                packet.fate = Fate::Sent(event.output);
            }
            // It was sent to the node itself, and is back.
            _ if is_marking && MARKING.contains(&chain) => packet.fate = Fate::Unseen,
            _ if is_marking => {}
            _ => packet.pass(event, book),
        }
    }

    fn begin(&mut self, event: &TraceEvent) {
        // A packet has the number of one that is gone.
        for gone in self.packets.iter_mut().filter(|packet| packet.id == Some(event.id)) {
            gone.id = None;
        }
        let Some(headers) = event.headers.filter(|_| self.left > 0) else { return };
        self.left -= 1;
        self.packets.push(Packet {
            at: Timestamp::now(),
            first: headers,
            last: headers,
            input: event.input,
            mark: event.mark,
            passes: Vec::new(),
            fate: Fate::Unseen,
            is_incomplete: self.is_losing,
            id: Some(event.id),
            touched: Instant::now(),
        });
    }

    /// The packet of an event. One that the node sent to itself comes back with another number.
    fn find(&mut self, event: &TraceEvent) -> Option<&mut Packet> {
        let [incoming, _] = MARKING;
        let may_be_back = event.chain.table == self.table && event.chain.chain == incoming;
        let place =
            self.packets.iter().rposition(|packet| packet.id == Some(event.id)).or_else(|| {
                let is_back = |packet: &Packet| {
                    matches!(packet.fate, Fate::Sent(_)) && event.headers == Some(packet.last)
                };
                let place = self.packets.iter().rposition(is_back).filter(|_| may_be_back)?;
                self.packets[place].id = Some(event.id);
                Some(place)
            })?;
        self.packets.get_mut(place)
    }

    /// Takes the packets that are at their end, or all of them.
    pub fn finished(&mut self, all: bool) -> Vec<Packet> {
        let is_finished = |packet: &Packet| all || packet.touched.elapsed() >= QUIET;
        let (finished, rest) = self.packets.drain(..).partition(is_finished);
        self.packets = rest;
        finished
    }

    /// Whether no further packet can begin, and none is on its way.
    pub fn is_over(&self) -> bool {
        self.left == 0 && self.packets.is_empty()
    }
}

impl Packet {
    /// A SYN.
    #[cfg(test)]
    pub fn example(source: &str, destination: &str, fate: Fate) -> Self {
        let [source, destination] = [source, destination].map(|at| at.parse().unwrap());
        let headers = Headers { source, destination, protocol: 6, tcp_flags: Some(2) };
        Self {
            at: Timestamp::now(),
            first: headers,
            last: headers,
            input: None,
            mark: 0,
            passes: Vec::new(),
            fate,
            is_incomplete: false,
            id: None,
            touched: Instant::now(),
        }
    }

    /// Whether it begins a connection, as far as that can be told: with a SYN, or with another
    /// protocol by passing a chain of the type `nat`.
    pub fn is_first(&self) -> bool {
        /// FIN, SYN, RST and ACK.
        const ENDS: u8 = 0x17;
        const SYN: u8 = 0x02;
        let is_nat = |pass: &Pass| pass.info.as_ref().is_some_and(|info| info.kind == "nat");
        match self.first.tcp_flags {
            Some(flags) => flags & ENDS == SYN,
            None => self.passes.iter().any(is_nat),
        }
    }

    fn pass(&mut self, event: &TraceEvent, book: &mut Book) {
        if event.headers.is_some() {
            if self.passes.len() >= MOST {
                return;
            }
            self.passes.push(Pass {
                base: event.chain.clone(),
                info: book.base(&event.chain),
                chains: Vec::new(),
                rule: None,
                verdict: "",
                then: None,
            });
            if self.fate == Fate::Taken {
                // It has come back.
                self.fate = Fate::Unseen;
            }
        }
        let Some(pass) = self.passes.last_mut() else { return };
        if event.chain.table != pass.base.table {
            return;
        }
        let [incoming, outgoing] = MARKING;
        // At the output, chains of type route alone have the kernel look the route up again.
        if pass.info.as_ref().is_some_and(|info| {
            info.hook == incoming || info.hook == outgoing && info.kind == "route"
        }) {
            self.mark = event.mark;
        }
        let name = &event.chain.chain;
        if *name != pass.base.chain && !pass.chains.contains(name) && pass.chains.len() < MOST {
            pass.chains.push(name.clone());
        }
        let verdict = match &event.step {
            TraceStep::Policy { accepts: true } => "policy accept",
            TraceStep::Policy { accepts: false } => "policy drop",
            TraceStep::Rule { handle, verdict } => {
                let verdict = match verdict {
                    TraceVerdict::Accept => "accept",
                    TraceVerdict::Drop => "drop",
                    TraceVerdict::Queue => "queue",
                    TraceVerdict::Stolen => "stolen",
                    _ => return,
                };
                pass.rule = Some((name.clone(), *handle, book.rule(&event.chain, *handle)));
                verdict
            }
            TraceStep::End => return,
        };
        pass.verdict = verdict;
        // A chain that lets it pass says nothing about its end: it may come after the last one of
        // IP, such as those of the families bridge and netdev.
        match verdict {
            "drop" | "policy drop" => self.fate = Fate::Dropped,
            "queue" | "stolen" => self.fate = Fate::Taken,
            _ => {}
        }
    }
}
