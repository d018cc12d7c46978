//! Lists, whole or in pages.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::{
    answer::{self, Status, StreamedBody},
    faults::Faults,
    log::Key,
    media::MediaType,
    query::Query,
    resource::Resource,
    selector::Selector,
    store::{Snapshot, Store},
};

/// The end of a page, from which the next page starts.
#[derive(Debug)]
struct Continue {
    version: u64,
    after: Key,
}

impl Continue {
    fn encode(&self) -> String {
        let (namespace, name) = &self.after;
        URL_SAFE_NO_PAD.encode(json!([self.version, namespace, name]).to_string())
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (version, namespace, name) = serde_json::from_slice(&bytes).ok()?;
        Some(Self { version, after: (namespace, name) })
    }
}

pub(crate) fn list(
    store: &Store,
    faults: &Faults,
    resource: Resource,
    namespace: Option<&str>,
    query: &Query,
    media: MediaType,
) -> Result<Response<StreamedBody>, Status> {
    let selector = query.selector()?;
    let (snapshot, after) = snapshot(store, resource, query)?;
    // A real server answers version 0 from its cache, in one piece.
    let limit = match query.get("resourceVersion") {
        "0" => 0,
        _ => {
            let most = faults.lock().page_size.unwrap_or(u64::MAX);
            query.number("limit")?.map_or(0, |limit| limit.min(most))
        }
    };
    let (items, next) = page(&snapshot, namespace, &selector, after.as_ref(), limit);
    let mut metadata = json!({"resourceVersion": snapshot.version.to_string()});
    if let Some((next, remaining)) = next {
        // A server does not count what a selector would leave out.
        if selector == Selector::default() {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata["continue"] = Continue { version: snapshot.version, after: next }.encode().into();
    }
    if faults.lock().omits_versions {
        metadata["resourceVersion"] = Value::Null;
    }
    let list = media.list(resource, &metadata, &items);
    let (sender, body) = StreamedBody::new();
    let faults = faults.clone();
    tokio::spawn(async move { faults.write(&sender, list).await });
    Ok(answer::answer(StatusCode::OK, media.name(), body))
}

fn snapshot(
    store: &Store,
    resource: Resource,
    query: &Query,
) -> Result<(Snapshot, Option<Key>), Status> {
    let token = query.get("continue");
    let expired = |version| {
        let message = "The provided continue parameter is too old to display a consistent list \
                       result.";
        move |_| Status::new(410, "Expired", format!("{message} ({version})"))
    };
    if !token.is_empty() {
        if !matches!(query.get("resourceVersion"), "" | "0") {
            let message = "specifying resource version is not allowed when using continue";
            return Err(Status::bad_request(message));
        }
        let token = Continue::decode(token)
            .ok_or_else(|| Status::bad_request("continue key is not valid"))?;
        let snapshot =
            store.snapshot(resource, Some(token.version)).map_err(expired(token.version))?;
        return Ok((snapshot, Some(token.after)));
    }
    let matching = query.get("resourceVersionMatch");
    let version = match (query.get("resourceVersion"), matching) {
        ("", "") | ("0", "" | "NotOlderThan") => None,
        ("", _) => {
            let message = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is \
                           provided";
            return Err(Status::invalid("resourceVersionMatch", message));
        }
        ("0", _) => {
            let message = "Forbidden: resourceVersionMatch \"Exact\" is forbidden for \
                           resourceVersion \"0\"";
            return Err(Status::invalid("resourceVersionMatch", message));
        }
        (_, "Exact") => query.version()?,
        (_, _) => {
            let (wanted, newest) = (query.version()?.unwrap_or(0), store.version());
            if wanted > newest {
                return Err(Status::too_large(wanted, newest));
            }
            None
        }
    };
    let snapshot =
        store.snapshot(resource, version).map_err(expired(version.unwrap_or_default()))?;
    Ok((snapshot, None))
}

/// Returns the selected objects after `after`, at most `limit` of them (0 for all). If there are
/// more, also returns the key after which the next page starts, and how many are left.
fn page<'s>(
    snapshot: &'s Snapshot,
    namespace: Option<&str>,
    selector: &Selector,
    after: Option<&Key>,
    limit: u64,
) -> (Vec<&'s Value>, Option<(Key, usize)>) {
    let mut items = Vec::new();
    let mut last = None;
    let mut selected = snapshot.objects.iter().filter(|(key, stored)| {
        after.is_none_or(|after| *key > after)
            && namespace.is_none_or(|namespace| key.0 == namespace)
            && selector.matches(&stored.value)
    });
    while let Some((key, stored)) = selected.next() {
        if limit > 0 && items.len() as u64 >= limit {
            return (items, last.map(|last: &Key| (last.clone(), selected.count() + 1)));
        }
        items.push(&*stored.value);
        last = Some(key);
    }
    (items, None)
}
