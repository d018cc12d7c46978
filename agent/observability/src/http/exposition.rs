//! The negotiation of the format of metrics.

use hyper::{
    HeaderMap,
    header::{ACCEPT, HeaderValue},
};

use crate::metrics::Exposition;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const PROTOBUF: HeaderValue = HeaderValue::from_static(
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
);

/// Returns the content type of a format.
pub(super) fn content_type(form: Exposition) -> HeaderValue {
    match form {
        Exposition::Text => TEXT,
        Exposition::Protobuf => PROTOBUF,
    }
}

/// Returns the available format that the request prefers, or text if the request accepts none.
pub(super) fn negotiate(headers: &HeaderMap) -> Exposition {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut best = (Exposition::Text, 0);
    for range in accepted.flat_map(|value| value.split(',')) {
        // Of equally preferred formats, the first counts.
        if let Some((form, preference)) = form(range)
            && preference > best.1
        {
            best = (form, preference);
        }
    }
    best.0
}

/// Returns the format that a media range accepts, and its quality in thousandths.
fn form(range: &str) -> Option<(Exposition, u32)> {
    let mut parts = range.split(';').map(str::trim);
    let media_type = parts.next()?;
    let parameters: Vec<(&str, &str)> = parts
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim().trim_matches('"')))
        .collect();
    let is = |name: &str, wanted: &str| {
        parameters.iter().any(|(found, value)| *found == name && *value == wanted)
    };
    let lacks = |name: &str| parameters.iter().all(|(found, _)| *found != name);
    let form = match media_type {
        "application/vnd.google.protobuf"
            if is("proto", "io.prometheus.client.MetricFamily") && is("encoding", "delimited") =>
        {
            Exposition::Protobuf
        }
        "text/plain" if lacks("version") || is("version", "0.0.4") => Exposition::Text,
        "text/*" | "*/*" => Exposition::Text,
        _ => return None,
    };
    let quality =
        parameters.iter().find(|(name, _)| *name == "q").map_or(Some(1.0), |(_, q)| {
            q.parse::<f64>().ok().filter(|quality| (0.0..=1.0).contains(quality))
        })?;
    Some((form, (quality * 1000.0) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &[&'static str]) -> Exposition {
        let headers = accept.iter().map(|value| (ACCEPT, HeaderValue::from_static(value)));
        negotiate(&headers.collect())
    }

    #[test]
    fn the_preferred_form_is_taken() {
        const PROTO: &str = "application/vnd.google.protobuf;\
            proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let (text, protobuf) = (Exposition::Text, Exposition::Protobuf);
        assert_eq!(negotiated(&[]), text);
        assert_eq!(negotiated(&["application/json"]), text);
        assert_eq!(negotiated(&[PROTO]), protobuf);
        assert_eq!(negotiated(&["application/vnd.google.protobuf"]), text, "of what?");
        assert_eq!(negotiated(&["text/plain;version=0.0.4;q=0.5", PROTO]), protobuf);
        assert_eq!(negotiated(&["text/plain", PROTO]), text, "the first");
        // Prometheus' header by default, and with native histograms.
        let usual = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,\
             */*;q=0.2";
        assert_eq!(negotiated(&[usual]), text);
        let native = "application/vnd.google.protobuf;\
             proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,\
             application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4";
        assert_eq!(negotiated(&[native]), protobuf);
    }
}
