//! The report of a trace: what is printed of each packet, and at the end.

use std::fmt::{self, Display, Formatter};

use jiff::tz::TimeZone;
use serde::Serialize;
use switchyard_core::explain::Printable;

use super::{
    forecast::Agreement,
    owner::{self, OwnChains},
    packet::{Fate, Packet, Pass},
};

/// A trace, which `docs/trace.schema.json` describes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub question: String,
    /// The Service; `None` if there is none, or no explanation was available.
    pub service: Option<String>,
    /// The time that was traced, in seconds.
    pub seconds: f64,
    /// The times that the kernel had to leave out events.
    pub losses: u32,
    /// The tables of iptables-legacy, whose rules do not show.
    pub legacy_tables: Vec<String>,
    /// The packets, in the order of their ends.
    pub packets: Vec<Line>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// The time, RFC 3339.
    pub at: String,
    /// The source, with its port.
    pub source: String,
    /// The destination, with its port.
    pub destination: String,
    /// The protocol's number.
    pub protocol: u8,
    /// The flags of TCP, such as `SYN`.
    pub flags: Option<String>,
    /// The interface through which it came; `None` if the node sent it.
    pub input: Option<String>,
    /// Whether the client had sent the same SYN before.
    pub is_repeated: bool,
    /// The base chains that it passed.
    pub chains: Vec<ChainLine>,
    pub end: End,
    /// The interface through which it left.
    pub output: Option<String>,
    /// The gateway behind that, by a look-up of its own; `None` without one, or if it cannot be found
    /// out.
    pub next_hop: Option<String>,
    /// The source at the end.
    pub last_source: String,
    /// The destination at the end.
    pub last_destination: String,
    /// Whether it went as explained; `None` if that was not compared.
    pub as_explained: Option<bool>,
    /// The result of the comparison in words, or why there is none.
    pub explained: String,
}

/// A base chain that a packet passed.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainLine {
    hook: Option<&'static str>,
    priority: Option<i32>,
    kind: Option<String>,
    family: &'static str,
    table: String,
    /// The base chain, and those that it led to.
    chains: Vec<String>,
    /// The handle of the rule that decided.
    rule: Option<u64>,
    actions: Vec<String>,
    comment: Option<String>,
    verdict: &'static str,
    is_foreign: bool,
    /// Source and destination after the chain, if they are others.
    then: Option<[String; 2]>,
}

/// The end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// Sent through an interface.
    Sent,
    /// Received by the node itself.
    Received,
    Dropped,
    /// Dropped with an answer.
    Rejected,
    /// Handed to a program or another part of the kernel.
    Taken,
    /// Not seen again.
    Unseen,
}

impl Line {
    /// The line of a packet. `interface` returns names of interfaces, and `own` are the proxy's chains.
    pub fn new(
        packet: &Packet,
        agreement: Agreement,
        mut interface: impl FnMut(u32) -> String,
        own: &OwnChains,
    ) -> Self {
        let (as_explained, explained) = match agreement {
            Agreement::Same(what) => (Some(true), what),
            Agreement::Differs(what) => (Some(false), what),
            Agreement::NotCompared(why) => (None, why),
        };
        let chain = |pass: &Pass| {
            let info = pass.info.as_ref();
            let rule = pass.rule.as_ref();
            let name = |name: &String| match rule {
                Some((at, ..)) if at == name => None,
                _ => Some(name.clone()),
            };
            // The rule's chain comes last.
            let mut chains: Vec<String> =
                [&pass.base.chain].into_iter().chain(&pass.chains).filter_map(name).collect();
            chains.extend(rule.map(|(at, ..)| at.clone()));
            ChainLine {
                hook: info.map(|info| info.hook),
                priority: info.map(|info| info.priority),
                kind: info.map(|info| info.kind.clone()),
                family: pass.base.family,
                table: pass.base.table.clone(),
                chains,
                rule: rule.map(|(_, handle, _)| *handle),
                actions: rule.map(|(_, _, rule)| rule.actions.clone()).unwrap_or_default(),
                comment: rule.and_then(|(_, _, rule)| rule.comment.clone()),
                verdict: pass.verdict,
                is_foreign: !(own.has(&pass.decider()) || own.leave_to_policy(pass)),
                then: pass.then.map(|h| [h.source.to_string(), h.destination.to_string()]),
            }
        };
        let mut output = None;
        let end = match packet.fate {
            Fate::Sent(index) => {
                output = index;
                End::Sent
            }
            Fate::Received => End::Received,
            Fate::Dropped if packet.passes.last().is_some_and(Pass::rejects) => End::Rejected,
            Fate::Dropped => End::Dropped,
            Fate::Taken => End::Taken,
            Fate::Unseen => End::Unseen,
        };
        Self {
            at: packet.at.to_string(),
            source: packet.first.source.to_string(),
            destination: packet.first.destination.to_string(),
            protocol: packet.first.protocol,
            flags: packet.first.tcp_flags.map(flags),
            input: packet.input.map(&mut interface),
            is_repeated: false,
            chains: packet.passes.iter().map(chain).collect(),
            end,
            output: output.map(interface),
            next_hop: None,
            last_source: packet.last.source.to_string(),
            last_destination: packet.last.destination.to_string(),
            as_explained,
            explained,
        }
    }

    /// Whether the packet went the same way as another one of its flow.
    fn is_like(&self, other: &Self) -> bool {
        (&self.source, &self.chains, self.end) == (&other.source, &other.chains, other.end)
            && self.last_destination == other.last_destination
    }

    /// Prints the packet; shorter if it went as `before` did.
    pub fn text(&self, before: Option<&Self>) -> String {
        let time = self.at.parse::<jiff::Timestamp>().map_or_else(
            |_| self.at.clone(),
            |at| at.to_zoned(TimeZone::UTC).strftime("%H:%M:%S%.3f").to_string(),
        );
        let flags = self.flags.as_ref().map_or_else(String::new, |flags| format!("{flags}  "));
        let from = match &self.input {
            Some(interface) => format!("in through {}", Printable(interface)),
            None => "sent by this node".to_owned(),
        };
        let again = if self.is_repeated { ", sent again" } else { "" };
        let (source, to) = (&self.source, &self.destination);
        let mut text = format!("{time}  {flags}{source} > {to}  {from}{again}\n");
        if before.is_some_and(|before| self.is_like(before)) {
            text.push_str("  the same way as the packet before\n");
        } else {
            self.chains.iter().for_each(|chain| text.push_str(&chain.to_string()));
        }
        let end = match (self.end, &self.output) {
            (End::Sent, Some(interface)) => {
                let via = self.next_hop.as_ref().map_or(String::new(), |hop| format!(" via {hop}"));
                format!("sent to {} through {}{via}", self.last_destination, Printable(interface))
            }
            (End::Sent, None) => format!("sent to {}", self.last_destination),
            (End::Received, _) => format!("received by this node, at {}", self.last_destination),
            (End::Dropped | End::Rejected, _) => {
                let word = if self.end == End::Dropped { "dropped" } else { "rejected" };
                let by = self.chains.last().map_or_else(String::new, ChainLine::decision);
                format!("{word} by {by}")
            }
            (End::Taken, _) => "handed over; what comes next is not seen".to_owned(),
            (End::Unseen, _) => "not seen again after this".to_owned(),
        };
        let compared = match self.as_explained {
            Some(true) => "as explained",
            Some(false) => "NOT as explained",
            None => "not compared",
        };
        text + &format!("  {end}\n  {compared}: {}\n", Printable(&self.explained))
    }
}

impl ChainLine {
    /// The chain that decided, in words.
    fn decision(&self) -> String {
        let by = match self.rule {
            Some(handle) => format!("rule {handle} of"),
            None => "the policy of".to_owned(),
        };
        let chain = self.chains.last().map_or("", String::as_str);
        let whose = match (self.is_foreign, owner::of(chain)) {
            (false, _) => String::new(),
            (true, Some(whose)) => format!(", which is {whose}"),
            (true, None) => ", which is not Switchyard's".to_owned(),
        };
        let (table, chain) = (Printable(&self.table), Printable(chain));
        format!("{by} {} {table} {chain}{whose}", self.family)
    }
}

impl Display for ChainLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (hook, kind) = (self.hook.unwrap_or("-"), self.kind.as_deref().unwrap_or("-"));
        let priority = self.priority.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let (family, table) = (self.family, Printable(&self.table));
        let chains = self.chains.join(" > ");
        let chains = Printable(&chains);
        write!(f, "  {hook:11} {kind:6} {priority:>5}  {family} {table}  {chains}  ")?;
        match self.rule {
            Some(handle) => {
                write!(f, "rule {handle}")?;
                self.actions.iter().try_for_each(|action| write!(f, " {}", Printable(action)))?;
                if let Some(comment) = &self.comment {
                    write!(f, " \"{}\"", Printable(comment))?;
                }
                write!(f, ": {}", self.verdict)?;
            }
            None => f.write_str(self.verdict)?,
        }
        writeln!(f, "{}", if self.is_foreign { "  (foreign)" } else { "" })?;
        match &self.then {
            Some([source, destination]) => {
                writeln!(f, "  {:11} {source} > {destination}", "now")
            }
            None => Ok(()),
        }
    }
}

/// The names of TCP's flags that decide about a connection.
fn flags(flags: u8) -> String {
    const NAMES: [(u8, &str); 4] = [(0x02, "SYN"), (0x01, "FIN"), (0x04, "RST"), (0x10, "ACK")];
    let names: Vec<&str> =
        NAMES.into_iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| name).collect();
    names.join(",")
}

impl Report {
    /// The exit status if packets are as explained, with any that differs, without packets, and
    /// if nothing could be compared, as for lack of events.
    pub fn exit_status(&self) -> u8 {
        let is = |wanted: Option<bool>| self.packets.iter().any(|line| line.as_explained == wanted);
        if self.packets.is_empty() && self.losses == 0 {
            4
        } else if is(Some(false)) {
            3
        } else if is(Some(true)) {
            0
        } else {
            5
        }
    }

    /// Adds a packet, and returns its text.
    pub fn add(&mut self, mut line: Line) -> String {
        let is_syn = line.flags.as_deref() == Some("SYN");
        let is_same = |other: &&Line| other.source == line.source;
        let before = self.packets.iter().rev().find(is_same);
        line.is_repeated =
            is_syn && before.is_some_and(|before| before.flags.as_deref() == Some("SYN"));
        let text = line.text(before);
        self.packets.push(line);
        text
    }

    /// The end of the text.
    pub fn summary(&self) -> String {
        let count =
            |is: &dyn Fn(&Line) -> bool| self.packets.iter().filter(|line| is(line)).count();
        let mut text = match self.packets.len() {
            0 => format!("Nothing was seen in {:.0} s.\n", self.seconds),
            number => format!(
                "{number} packet{} in {:.0} s: {} as explained, {} not, {} not compared.\n",
                if number == 1 { "" } else { "s" },
                self.seconds,
                count(&|line| line.as_explained == Some(true)),
                count(&|line| line.as_explained == Some(false)),
                count(&|line| line.as_explained.is_none()),
            ),
        };
        let repeated = count(&|line| line.is_repeated);
        if repeated > 0 {
            text.push_str(&format!(
                "{repeated} of them were sent again, as the client had taken no answer.\n"
            ));
        }
        if self.packets.is_empty() {
            text.push_str(
                "try: a connection while this runs; on the node of the client or, for clients outside, \
                 where they come in; the client's address as this node sees it, or `any`.\n",
            );
        }
        if self.losses > 0 {
            text.push_str(&format!(
                "The kernel had no room for some events, {} times: ways may be incomplete.\n",
                self.losses
            ));
        }
        if !self.legacy_tables.is_empty() {
            text.push_str(&format!(
                "Rules of iptables-legacy do not show, and there are some in: {}.\n",
                self.legacy_tables.join(", ")
            ));
        }
        text
    }
}
