//! The answers of `switchyard explain` about clients, and whether a packet went so.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use serde::Deserialize;
use serde_json::Value;
use switchyard_core::{
    error::ErrorChain,
    explain::{Known, Question, explain},
    model::Protocol,
    proxier::Mode,
};
use switchyard_kernel::nftables::gates::ChainPath;

use super::{
    owner::OwnChains,
    packet::{Fate, Packet},
};
use crate::{
    Failure, backends,
    config::{Loaded, flags::Flags, settings::SourceSettings},
    explain::{self, client, server::Request},
};

/// The most clients whose answers are kept.
const MOST_CLIENTS: usize = 256;
/// Why a packet is not compared whose way seems to be another than explained.
const LOST: &str = "the kernel had no room for some events, which may be of this packet";

/// Why a packet is not compared that was to be dropped, and was not seen again.
const HIDDEN: &str = "rules of iptables-legacy do not show, and may have dropped it";
/// Why a packet may not have been seen again.
const UNSEEN: &str = "it was not seen again after these chains: no route, rp_filter, or rules that \
    are not in nf_tables";

/// An answer of `switchyard explain`, as far as it is compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// The mode of the proxy.
    mode: Option<String>,
    /// The answer in words.
    sentence: String,
    /// The Service; `None` if there is none.
    service: Option<String>,
    verdict: String,
    route: Option<Route>,
    endpoints: Vec<Endpoint>,
    /// The chains of other programs that drop such connections; `None` if these were not read.
    other_tables: Option<Vec<Closed>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Closed {
    /// The table, behind its family.
    table: String,
    chain: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Route {
    /// `"refused"`, `"dropped"`, or `{"pool": "cluster" | "local"}`.
    to: Value,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    address: SocketAddr,
    share: Option<f64>,
    local_share: Option<f64>,
}

/// Whether a packet went as explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// As explained, with what was explained.
    Same(String),
    /// Otherwise, with what differs.
    Differs(String),
    /// Not compared, with the reason.
    NotCompared(String),
}

/// A packet beside the answer about its client.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Whether it went as explained.
    pub agreement: Agreement,
    /// The Service of the answer, if it has one; `None` without an answer.
    pub service: Option<Option<String>>,
    /// The chains of the proxy that answered.
    pub own: OwnChains,
}

impl Compared {
    /// A packet that was not compared, with the reason.
    pub fn not(why: &str, own: &OwnChains) -> Self {
        let agreement = Agreement::NotCompared(why.to_owned());
        Self { agreement, service: None, own: own.clone() }
    }
}

/// The place that answers come from.
enum Source {
    Proxy(PathBuf),
    Known(Box<dyn Known + Send>),
}

/// Answers for the clients of one address.
pub struct Forecasts {
    source: Source,
    to: SocketAddr,
    protocol: Protocol,
    known: HashMap<IpAddr, Result<Forecast, String>>,
}

impl Forecasts {
    /// Answers from the places that `switchyard explain` takes them from.
    pub fn new(
        from: Option<&PathBuf>,
        flags: &Flags,
        loaded: &Loaded,
        to: SocketAddr,
        protocol: Protocol,
    ) -> Result<Self, Failure> {
        let source = match (from, &loaded.settings.source) {
            (Some(path), _) => Source::Known(Box::new(explain::read_snapshot(path)?)),
            (None, SourceSettings::Manifests(directory)) => {
                Source::Known(Box::new(explain::read_manifests(directory, loaded)?))
            }
            _ => Source::Proxy(explain::socket(flags)),
        };
        Ok(Self { source, to, protocol, known: HashMap::new() })
    }

    /// Answers of the proxy at a socket.
    #[cfg(test)]
    pub fn of_socket(path: PathBuf, to: SocketAddr, protocol: Protocol) -> Self {
        Self { source: Source::Proxy(path), to, protocol, known: HashMap::new() }
    }

    /// Returns the answer for a client, or why there is none.
    fn get(&mut self, client: IpAddr) -> &Result<Forecast, String> {
        if self.known.len() >= MOST_CLIENTS {
            self.known.clear();
        }
        let (source, to, protocol) = (&self.source, self.to, self.protocol);
        self.known.entry(client).or_insert_with(|| {
            let question = Question::Address { client: Some(client), to, protocol };
            ask(source, &question).map_err(|error| ErrorChain(error.as_ref()).to_string())
        })
    }

    /// Compares a packet. What differs may have changed since the answer: it is asked for again.
    pub fn compare(&mut self, packet: &Packet, own: &OwnChains) -> Compared {
        let client = packet.first.source.ip();
        let compared = self.compare_once(packet, own);
        if !matches!(compared.agreement, Agreement::Differs(_)) {
            return compared;
        }
        self.known.remove(&client);
        let mut compared = self.compare_once(packet, own);
        if packet.is_incomplete && matches!(compared.agreement, Agreement::Differs(_)) {
            compared.agreement = Agreement::NotCompared(LOST.to_owned());
        }
        compared
    }

    fn compare_once(&mut self, packet: &Packet, own: &OwnChains) -> Compared {
        match self.get(packet.first.source.ip()) {
            Ok(forecast) => {
                let own = forecast.own_chains(own);
                let agreement = forecast.compare(packet, &own);
                Compared { agreement, service: Some(forecast.service.clone()), own }
            }
            Err(why) => Compared::not(why, own),
        }
    }
}

fn ask(source: &Source, question: &Question) -> Result<Forecast, Failure> {
    Ok(match source {
        Source::Proxy(path) => client::value(path, &Request::Explain(question.to_string()))?,
        Source::Known(known) => {
            serde_json::from_value(serde_json::to_value(explain(question, &**known))?)?
        }
    })
}

impl Forecast {
    /// The chains of the proxy that answered, which may be in another mode than configured here.
    fn own_chains(&self, configured: &OwnChains) -> OwnChains {
        let answered = |mode: &Mode| self.mode.as_deref() == Some(mode.as_str());
        let mode = backends::MODES.into_iter().find(answered).unwrap_or(configured.mode);
        OwnChains { mode, ..configured.clone() }
    }

    /// The chain that was explained to drop such packets, if it dropped this one.
    fn foreseen<'a>(&self, packet: &'a Packet) -> Option<&'a ChainPath> {
        let last = packet.passes.last().filter(|_| packet.fate == Fate::Dropped)?;
        let ChainPath { family, table, chain, .. } = &last.base;
        let table = format!("{family} {table}");
        let is_it = |closed: &Closed| closed.table == table && closed.chain == *chain;
        self.other_tables.iter().flatten().any(is_it).then_some(&last.base)
    }

    /// Compares a packet with the answer. `own` are the proxy's chains.
    pub fn compare(&self, packet: &Packet, own: &OwnChains) -> Agreement {
        if let Some(ChainPath { family, table, chain, .. }) = self.foreseen(packet) {
            return Agreement::Same(format!(
                "{family} {table} {chain} was seen to drop these connections"
            ));
        }
        let end = match (&self.route, self.verdict.as_str()) {
            (Some(route), _) => route.to.as_str().unwrap_or("pool"),
            (None, "refuses") => "refused",
            (None, "drops") => "dropped",
            (None, _) => return Agreement::NotCompared(self.sentence.clone()),
        };
        let is_ours = packet.passes.last().is_some_and(|pass| own.has(&pass.decider()));
        let (dropped, reached) = match packet.fate {
            Fate::Dropped => (true, false),
            Fate::Sent(_) | Fate::Received => (false, true),
            Fate::Taken | Fate::Unseen => (false, false),
        };
        let to = packet.last.destination;
        let is_relayed = self.mode.as_deref() == Some(Mode::USERSPACE.as_str());
        let is_as_explained = match end {
            // Others drop all of it.
            "pool" if self.verdict == "drops" && packet.is_first() => false,
            "pool" if is_relayed => packet.fate == Fate::Received,
            "pool" => reached && self.leads_to(packet, to),
            _ => dropped && is_ours,
        };
        if is_as_explained {
            return Agreement::Same(match end {
                "pool" if is_relayed => "the proxy itself serves the connection".to_owned(),
                "pool"
                    if self.endpoints.iter().any(|one| one.address == to && !self.is_used(one)) =>
                {
                    format!("{to} keeps connections that it had, and gets no new ones")
                }
                "pool" => format!("{to} is {} of the Service{}", self.place(), self.share(to)),
                _ => self.sentence.clone(),
            });
        }
        if packet.fate == Fate::Unseen && end != "pool" && own.may_hide {
            return Agreement::NotCompared(format!("{HIDDEN}. Explained was: {}", self.sentence));
        }
        let why = match packet.fate {
            Fate::Dropped if !is_ours => "a rule that is not Switchyard's dropped it",
            Fate::Unseen => UNSEEN,
            _ if reached && self.verdict == "drops" => "it was not dropped",
            _ if reached && to == packet.first.destination => "its destination was not translated",
            _ if reached => &format!("{to} is no endpoint that this client gets"),
            _ => return Agreement::Differs(format!("explained was: {}", self.sentence)),
        };
        Agreement::Differs(format!("{why}. Explained was: {}", self.sentence))
    }

    /// Whether the packet may go to this endpoint: one of a connection that exists, to any.
    fn leads_to(&self, packet: &Packet, to: SocketAddr) -> bool {
        let is_first = packet.is_first();
        self.endpoints.iter().any(|one| one.address == to && (self.is_used(one) || !is_first))
    }

    /// Whether new connections of the client may go to the endpoint.
    fn is_used(&self, endpoint: &Endpoint) -> bool {
        match self.route.as_ref().and_then(|route| route.to["pool"].as_str()) {
            Some("local") => endpoint.local_share.is_some(),
            _ => endpoint.share.is_some(),
        }
    }

    /// The share of new connections of the client that the endpoint gets, in words.
    fn share(&self, to: SocketAddr) -> String {
        let is_local = self.route.as_ref().is_some_and(|route| route.to["pool"] == "local");
        let endpoint = self.endpoints.iter().find(|one| one.address == to);
        let share = endpoint.and_then(|one| if is_local { one.local_share } else { one.share });
        let part = share.filter(|share| *share < 1.0);
        part.map_or_else(String::new, |share| format!(", which gets {:.0} %", share * 100.0))
    }

    fn place(&self) -> String {
        match self.endpoints.iter().filter(|endpoint| self.is_used(endpoint)).count() {
            1 => "the only endpoint".to_owned(),
            count => format!("one of {count} endpoints"),
        }
    }
}
