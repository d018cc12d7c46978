//! The API server with its troubles, and the source that watches it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use api_standin::{Backup, Direct, Faults, Resource};
use switchyard_core::{
    model::ServiceName,
    objects::{Event, Kind, Object, ObjectKey},
    runner::Input,
    testing::{Builder, NODE, endpoint, service, simulation::lock, slice},
};
use switchyard_sources::kube::{Pacer, RequestPace, Timing, WatchHealth, testing, watch_all};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};

use super::world::World;

/// The backups that are kept, of the objects before each change.
const BACKUPS: usize = 6;

/// A trouble that begins and ends.
type Trouble = (&'static str, fn(&Faults, bool));

/// The troubles of the API server.
pub(super) const TROUBLES: [Trouble; 10] = [
    ("the server was away", |faults, is_away| {
        faults.refuse_connections(is_away);
        faults.cut_connections();
    }),
    ("watches were silent", Faults::stall_watches),
    ("requests were not answered", Faults::withhold_answers),
    ("lists could not be streamed", |faults, cannot| faults.streaming_lists(!cannot)),
    ("streamed lists did not end", Faults::withhold_list_ends),
    ("etcd lacked progress requests", |faults, lacks| faults.progress_requests(!lacks)),
    ("watches ended at once", Faults::end_watches_at_once),
    ("objects had no versions", Faults::omit_versions),
    ("a resource was hidden", |faults, is_hidden| faults.hide(Resource::ServiceCidrs, is_hidden)),
    ("answers came in pieces", |faults, are_slow| {
        faults.trickle(are_slow.then_some((300, Duration::from_millis(15))));
    }),
];

#[derive(Default)]
pub(super) struct Cluster {
    pub(super) server: Direct,
    /// The objects before each of the last changes.
    backups: Vec<Backup>,
    last: Option<Builder>,
    /// The time since which the server has been away.
    away: Option<Instant>,
}

impl Cluster {
    /// Creates a Service with endpoints.
    pub(super) fn serve(&self) {
        let served = service("served", "10.0.9.10").port("", "TCP", 80);
        self.server.store().apply(served.json().clone());
        let slice = slice("served", "a").port("", "TCP", 8080);
        let slice = slice.endpoint(endpoint("10.244.9.11", NODE));
        let slice = slice.endpoint(endpoint("10.244.9.12", "elsewhere"));
        self.server.store().apply(slice.json().clone());
    }

    /// Creates an object or changes it, perhaps to one that no client can read.
    pub(super) fn apply(&mut self, made: Builder, is_readable: bool) {
        let (made, field) = match made.key().kind {
            Kind::EndpointSlice => (made, "endpoints"),
            _ => (made, "spec"),
        };
        let made = if is_readable { made } else { made.set(field, "nonsense") };
        self.keep_backup();
        self.server.store().apply(made.json().clone());
        self.last = Some(made);
    }

    pub(super) fn apply_again(&mut self) {
        if let Some(last) = &self.last {
            self.server.store().apply(last.json().clone());
        }
    }

    /// Moves the first endpoint of one of the slices.
    pub(super) fn move_endpoint(&mut self, number: usize) {
        self.keep_backup();
        let slices: Vec<_> = self.backups[0].objects(Resource::EndpointSlices).cloned().collect();
        let Some(mut slice) = slices.get(number % slices.len().max(1)).cloned() else { return };
        let address = match slice["addressType"].as_str() {
            Some("IPv6") => format!("fd00:10:244::{:x}", 0x100 + number % 9),
            _ => format!("10.244.9.{}", 1 + number % 9),
        };
        if let Some(moved) = slice.pointer_mut("/endpoints/0/addresses/0") {
            *moved = address.into();
            self.server.store().apply(slice);
        }
    }

    /// Deletes an object, if it is there.
    pub(super) fn delete(&mut self, made: &Builder) {
        let key = made.key();
        self.keep_backup();
        self.server.store().delete(resource(key.kind), &key.namespace, &key.name);
    }

    /// Changes the ports of some Services, which may be new.
    pub(super) fn change_many(&mut self) {
        self.keep_backup();
        let port = 100 + (self.server.store().version() % 100) as i64;
        for number in 1..6 {
            let made = service(&format!("many-{number}"), &format!("10.0.9.{number}"));
            self.server.store().apply(made.port("", "TCP", port).json().clone());
        }
    }

    /// Has everything listed again in small pages that come slowly. Returns the number of requests
    /// until then.
    pub(super) fn list_in_pages(&self) -> usize {
        let faults = self.server.faults();
        faults.streaming_lists(false);
        faults.limit_pages(Some(2));
        faults.trickle(Some((300, Duration::from_millis(15))));
        // Without a version that can be used, a list has pages.
        faults.fail_next(None, 410, Kind::ALL.len());
        faults.expire_watches();
        self.server.requests().len()
    }

    /// Whether a page was asked for since so many requests.
    pub(super) fn has_paged_since(&self, requests: usize) -> bool {
        self.server.requests().iter().skip(requests).any(|request| request.contains("limit="))
    }

    pub(super) fn delete_service(&mut self, service: &ServiceName) {
        self.keep_backup();
        self.server.store().delete(Resource::Services, service.namespace(), service.name());
    }

    fn keep_backup(&mut self) {
        self.backups.truncate(BACKUPS - 1);
        self.backups.insert(0, self.server.store().backup());
    }

    /// Brings back the objects before so many changes, on servers that start again.
    pub(super) async fn restore(&mut self, changes: usize, is_bumped: bool) {
        let Some(backup) = self.backups.get(changes) else { return };
        self.server.store().restore_from(backup, is_bumped);
        self.server.faults().cut_connections();
        self.backups.clear();
        if !is_bumped {
            // Nobody writes before clients have noticed: they would miss what is written.
            self.mend();
            sleep(Duration::from_secs(400)).await;
        }
    }

    /// Begins a trouble, or ends it.
    pub(super) fn trouble(&mut self, number: usize, begins: bool) -> &'static str {
        let (name, switch) = TROUBLES[number];
        switch(self.server.faults(), begins);
        if number == 0 {
            self.away = begins.then(|| self.away.unwrap_or_else(Instant::now));
        }
        name
    }

    /// Ends all troubles.
    pub(super) fn mend(&mut self) {
        self.away = None;
        self.server.faults().mend();
    }

    /// Returns the watch of a source whose health is reported wrongly.
    pub(super) fn wrong_health(&self, health: &WatchHealth) -> Option<String> {
        let away = self.away?.elapsed();
        let heard = Kind::ALL.into_iter().filter_map(|kind| Some((kind, health.heard(kind)?)));
        let mut wrong = heard.filter(|(_, heard)| *heard < away);
        let (kind, heard) = wrong.next()?;
        Some(format!("{kind} was heard from {heard:?} ago, and the server is away for {away:?}"))
    }

    /// Returns how what is known differs from what the server has: not at all, but for objects that
    /// cannot be read.
    pub(super) fn difference(&self, known: &BTreeMap<ObjectKey, Object>) -> Option<String> {
        let mut left = known.clone();
        let backup = self.server.store().backup();
        for kind in Kind::ALL {
            for value in backup.objects(resource(kind)) {
                let (key, read) = testing::decode_item(kind, &value.to_string());
                let key = key.expect("a name");
                let is_other = kind == Kind::Node && key.name != NODE;
                let was_known = left.remove(&key);
                match read {
                    Ok(object) if !is_other && was_known.as_ref() != Some(&object) => {
                        return Some(format!("{object:?} is known as {was_known:?}"));
                    }
                    _ => {}
                }
            }
        }
        let (key, _) = left.first_key_value()?;
        Some(format!("{key} is known, and gone"))
    }
}

fn resource(kind: Kind) -> Resource {
    match kind {
        Kind::Node => Resource::Nodes,
        Kind::Service => Resource::Services,
        Kind::EndpointSlice => Resource::EndpointSlices,
        Kind::ServiceCidr => Resource::ServiceCidrs,
    }
}

/// The events of a source.
#[derive(Default)]
pub(super) struct Told {
    pub(super) events: Vec<Event>,
    /// The objects that these events leave.
    pub(super) objects: BTreeMap<ObjectKey, Object>,
}

impl Told {
    /// Records an event. Returns whether it removes an object.
    fn take(&mut self, event: &Event) -> bool {
        let before = self.objects.len();
        match event {
            Event::Apply(object) => drop(self.objects.insert(object.key(), object.clone())),
            Event::Delete(key) => drop(self.objects.remove(key)),
            Event::Replace { kind, objects, malformed } => {
                let of_list = objects.iter().map(|object| (object.key(), object.clone()));
                let of_list = of_list.collect::<BTreeMap<_, _>>();
                self.objects.retain(|key, _| {
                    key.kind != *kind || of_list.contains_key(key) || malformed.contains(key)
                });
                let is_less = self.objects.len() < before;
                self.objects.extend(of_list);
                self.events.push(event.clone());
                return is_less;
            }
            _ => {}
        }
        self.events.push(event.clone());
        self.objects.len() < before
    }
}

/// Starts a source of a process, which sends the objects to the process's runner.
pub(super) fn start_source(
    tasks: &mut JoinSet<()>,
    world: &Arc<Mutex<World>>,
    server: &Direct,
    inputs: mpsc::Sender<Input>,
) -> (Arc<Mutex<Told>>, WatchHealth) {
    let (told, health) = (Arc::<Mutex<Told>>::default(), WatchHealth::new());
    let (sender, mut events) = mpsc::channel::<Event>(1);
    let client = testing::client_of(server.clone());
    let pacer = Pacer::new(RequestPace::default());
    let watches = watch_all(client, pacer, Timing::default(), NODE, sender, health.clone());
    tasks.spawn(async move { watches.await.expect("no watch panics") });
    let (world, record) = (world.clone(), told.clone());
    tasks.spawn(async move {
        while let Some(event) = events.recv().await {
            let removes = lock(&record).take(&event);
            lock(&world).note_told(&event, removes);
            // A runner that has ended takes no more.
            let _ = inputs.send(event.into()).await;
        }
    });
    (told, health)
}
