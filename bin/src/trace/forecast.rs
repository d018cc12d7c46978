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

use super::packet::{Fate, Packet};
use crate::{
    Failure,
    config::{Loaded, flags::Flags, settings::SourceSettings},
    explain::{self, client, server::Request},
};

/// The most clients whose answers are kept.
const MOST_CLIENTS: usize = 256;

/// An answer of `switchyard explain`, as far as it is compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// The mode of the proxy.
    pub mode: Option<String>,
    /// The answer in words.
    pub sentence: String,
    /// The Service; `None` if there is none.
    pub service: Option<String>,
    verdict: String,
    route: Option<Route>,
    endpoints: Vec<Endpoint>,
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

/// The place that answers come from.
enum Source {
    Proxy(PathBuf),
    Known(Box<dyn Known>),
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

    /// Returns the answer for a client, or why there is none.
    pub fn get(&mut self, client: IpAddr) -> &Result<Forecast, String> {
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
    pub fn compare(&mut self, packet: &Packet, is_ours: &dyn Fn(&Packet) -> bool) -> Agreement {
        let client = packet.first.source.ip();
        let compared = self.compare_once(packet, is_ours);
        if !matches!(compared, Agreement::Differs(_)) {
            return compared;
        }
        self.known.remove(&client);
        self.compare_once(packet, is_ours)
    }

    fn compare_once(&mut self, packet: &Packet, is_ours: &dyn Fn(&Packet) -> bool) -> Agreement {
        match self.get(packet.first.source.ip()) {
            Ok(forecast) => forecast.compare(packet, is_ours(packet)),
            Err(why) => Agreement::NotCompared(why.clone()),
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
    /// Compares a packet with the answer. `is_ours`: the proxy's own rules decided last.
    fn compare(&self, packet: &Packet, is_ours: bool) -> Agreement {
        let end = match (&self.route, self.verdict.as_str()) {
            (Some(route), _) => route.to.as_str().unwrap_or("pool"),
            (None, "refuses") => "refused",
            (None, "drops") => "dropped",
            (None, _) => return Agreement::NotCompared(self.sentence.clone()),
        };
        let (dropped, reached) = match packet.fate {
            Fate::Dropped => (true, false),
            Fate::Sent(_) | Fate::Received => (false, true),
            Fate::Taken | Fate::Unseen => (false, false),
        };
        let to = packet.last.destination;
        let is_relayed = self.mode.as_deref() == Some(Mode::USERSPACE.as_str());
        let is_as_explained = match end {
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
                "pool" => format!("{to} is {} of the Service", self.place()),
                _ => self.sentence.clone(),
            });
        }
        Agreement::Differs(match packet.fate {
            Fate::Dropped if !is_ours => {
                format!(
                    "a rule that is not Switchyard's dropped it. Explained was: {}",
                    self.sentence
                )
            }
            Fate::Unseen => format!(
                "it was not seen again after these chains: no route, rp_filter, or rules that are not \
                 in nf_tables. Explained was: {}",
                self.sentence
            ),
            _ if reached && to == packet.first.destination => {
                format!("its destination was not translated. Explained was: {}", self.sentence)
            }
            _ if reached => {
                format!(
                    "{to} is no endpoint that this client gets. Explained was: {}",
                    self.sentence
                )
            }
            _ => format!("explained was: {}", self.sentence),
        })
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

    fn place(&self) -> String {
        match self.endpoints.iter().filter(|endpoint| self.is_used(endpoint)).count() {
            1 => "the only endpoint".to_owned(),
            count => format!("one of {count} endpoints"),
        }
    }
}
