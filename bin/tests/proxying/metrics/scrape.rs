//! Prometheus' text format, read.

use std::collections::{BTreeMap, BTreeSet};

/// A family of series.
#[derive(Clone, Debug, Default)]
pub(super) struct Family {
    pub(super) kind: String,
    pub(super) help: String,
    /// The names of the labels of its series, without `le`.
    pub(super) labels: BTreeSet<String>,
    /// The values of `le`, in their order.
    pub(super) buckets: Vec<String>,
}

pub(super) fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let of_histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .filter(|name| families.get(*name).is_some_and(|f| f.kind == "histogram"));
            let family = families.get_mut(of_histogram.unwrap_or(name)).expect(line);
            for (label, value) in pairs(labels.strip_suffix('}').expect(line)) {
                if label == "le" && of_histogram.is_some() {
                    if !family.buckets.contains(&value) {
                        family.buckets.push(value);
                    }
                } else {
                    family.labels.insert(label);
                }
            }
            value.parse::<f64>().expect(line);
        }
    }
    families
}

/// The labels in `a="b",c="d"`. No value here has a quotation mark.
fn pairs(labels: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = labels;
    while let Some((name, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').expect(labels);
        pairs.push((name.trim_start_matches(',').to_owned(), value.to_owned()));
        rest = after;
    }
    pairs
}
