//! The memory that a tracker keeps, counted. Alone in its process, whose allocations it counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use switchyard_core::{objects::Event, testing::ManyServices, track::Tracker};

/// The most bytes that a Service with one port and one slice may take.
const A_SERVICE: usize = 1_100;
/// The most bytes that an endpoint may take.
const AN_ENDPOINT: usize = 90;
const SERVICES: usize = 3_000;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of the bytes in use.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes everything on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn live() -> usize {
    LIVE.load(Relaxed)
}

fn synced(tracker: &mut Tracker, events: impl IntoIterator<Item = Event>) {
    for event in events {
        tracker.apply(event);
    }
    tracker.resolve();
    tracker.mark_synced();
}

/// The bytes that a tracker of this cluster takes, and the tracker.
fn filled(many: &ManyServices) -> (usize, Tracker) {
    let before = live();
    let mut tracker = Tracker::new(many.node());
    synced(&mut tracker, many.lists());
    (live() - before, tracker)
}

#[test]
fn memory_follows_what_is_there() {
    let many = |endpoints| ManyServices { services: SERVICES, endpoints };
    let (small, _) = filled(&many(1));
    let (large, _) = filled(&many(51));
    let of_endpoint = (large - small) / SERVICES / 50;
    let of_service = small / SERVICES - of_endpoint;
    println!("a Service {of_service} bytes, an endpoint {of_endpoint} bytes");
    assert!(of_service <= A_SERVICE && of_endpoint <= AN_ENDPOINT);

    // Changes leave nothing behind.
    let many = many(5);
    let (size, mut tracker) = filled(&many);
    let before = live();
    let round = |tracker: &mut Tracker, version| {
        synced(tracker, (0..SERVICES).map(|i| Event::Apply(many.slice(i, version))));
        synced(tracker, [Event::Delete(many.service(version).key())]);
        synced(tracker, [Event::Apply(many.service(version))]);
    };
    (1..=10).for_each(|version| round(&mut tracker, version));
    assert!(live() < before + size / 20, "{before} bytes became {}", live());

    // Nor do Services that go again.
    let burst = SERVICES..6 * SERVICES;
    let added = |i| [many.service(i), many.slice(i, 0)].map(Event::Apply);
    synced(&mut tracker, burst.clone().flat_map(added));
    assert!(live() > before + 4 * size);
    let gone = |i| [many.service(i), many.slice(i, 0)].map(|object| Event::Delete(object.key()));
    synced(&mut tracker, burst.flat_map(gone));
    assert!(live() < before + size / 10, "{before} bytes became {}", live());
}
