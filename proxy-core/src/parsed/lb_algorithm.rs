//! The annotations of a Service that ask how its connections are spread: ours, and those of other
//! proxies, so that a migration edits nothing.

use super::{problem::Problems, values::clip};
use crate::{model::LbAlgorithm, objects::Metadata};

/// The requests of a Service's annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AskedAlgorithm {
    pub(crate) lb_algorithm: LbAlgorithm,
    pub(crate) annotation: &'static str,
}

/// Our annotation, which counts if there are several.
const OURS: &str = "switchyard/lb-algorithm";

/// The annotations of other proxies, the first of which counts, with what their values mean.
static SYNONYMS: [Synonym; 3] = [
    Synonym {
        annotation: "service.cilium.io/lb-algorithm",
        ignores_case: true,
        values: &[
            ("random", LbAlgorithm::Random),
            ("maglev", LbAlgorithm::Maglev),
            ("least-conn", LbAlgorithm::LeastConnections),
        ],
    },
    Synonym {
        annotation: "lb.projectcalico.org/external-traffic-strategy",
        ignores_case: true,
        values: &[("maglev", LbAlgorithm::Maglev)],
    },
    Synonym {
        annotation: "kube-router.io/service.scheduler",
        ignores_case: false,
        values: &[
            // The kernel's names. A scheduler and its weighted form are one algorithm, since all
            // algorithms have weights.
            ("rr", LbAlgorithm::RoundRobin),
            ("wrr", LbAlgorithm::RoundRobin),
            ("lc", LbAlgorithm::LeastConnections),
            ("wlc", LbAlgorithm::LeastConnections),
            ("sh", LbAlgorithm::SourceHash),
            ("dh", LbAlgorithm::DestinationHash),
            ("mh", LbAlgorithm::Maglev),
            ("sed", LbAlgorithm::ShortestExpectedDelay),
            ("nq", LbAlgorithm::NeverQueue),
            ("lblc", LbAlgorithm::LocalityLeastConnections),
            ("lblcr", LbAlgorithm::LocalityLeastConnectionsReplicated),
            ("fo", LbAlgorithm::WeightedFailover),
            ("ovf", LbAlgorithm::WeightedOverflow),
        ],
    },
];

/// An annotation of another proxy.
struct Synonym {
    annotation: &'static str,
    /// Whether the other proxy reads the value in upper and lower case.
    ignores_case: bool,
    values: &'static [(&'static str, LbAlgorithm)],
}

impl Synonym {
    fn read(&self, text: &str) -> Option<LbAlgorithm> {
        let is_text = |value: &str| match self.ignores_case {
            true => value.eq_ignore_ascii_case(text),
            false => value == text,
        };
        self.values.iter().find(|(value, _)| is_text(value)).map(|&(_, lb_algorithm)| lb_algorithm)
    }
}

/// Returns what a Service asks for; `None` if the Service asks for nothing, or for something
/// unknown, which is added to `problems`.
pub(crate) fn parse(metadata: &Metadata, problems: &mut Problems) -> Option<AskedAlgorithm> {
    let annotations = &metadata.annotations;
    if annotations.is_empty() {
        return None;
    }
    if let Some(text) = annotations.get(OURS) {
        let asked = text.trim().parse().ok();
        if asked.is_none() {
            unknown(OURS, text, LbAlgorithm::ALL.map(LbAlgorithm::as_str), problems);
        }
        return asked.map(|lb_algorithm| AskedAlgorithm { lb_algorithm, annotation: OURS });
    }
    let (synonym, text) = SYNONYMS
        .iter()
        .find_map(|synonym| annotations.get(synonym.annotation).map(|text| (synonym, text)))?;
    let asked = synonym.read(text.trim());
    if asked.is_none() {
        let values = synonym.values.iter().map(|&(value, _)| value);
        unknown(synonym.annotation, text, values, problems);
    }
    asked.map(|lb_algorithm| AskedAlgorithm { lb_algorithm, annotation: synonym.annotation })
}

fn unknown(
    annotation: &str,
    text: &str,
    possible: impl IntoIterator<Item = &'static str>,
    problems: &mut Problems,
) {
    let possible: Vec<&str> = possible.into_iter().collect();
    problems.add(
        format!("metadata.annotations[{annotation}]"),
        format_args!(
            "`{}` is not one of {}; connections are spread as the node's default says",
            clip(text.trim()),
            possible.join(", ")
        ),
    );
}
