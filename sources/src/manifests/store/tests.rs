use super::{super::syntax::Syntax, *};

fn file(path: &str, text: &str) -> (PathBuf, Option<Content>) {
    let path = PathBuf::from(path);
    let content = Content::decode(&path, Syntax::Yaml, text);
    (path, Some(content))
}

fn gone(path: &str) -> (PathBuf, Option<Content>) {
    (path.into(), None)
}

fn service(name: &str, ip: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: {ip}}}}}\n---\n"
    )
}

fn broken(name: &str) -> String {
    format!("{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: []}}\n---\n")
}

/// Events as `+a 10.0.0.1`, `-a`, `!a`.
fn update(store: &mut Store, changes: Vec<(PathBuf, Option<Content>)>) -> Vec<String> {
    store.update(changes).0.iter().map(print).collect()
}

fn print(event: &Event) -> String {
    match event {
        Event::Apply(Object::Service(s)) => format!("+{} {}", s.metadata.name, s.spec.cluster_ip),
        Event::Delete(key) => format!("-{}", key.name),
        Event::Malformed { object, field, message } => {
            assert!(!message.is_empty());
            format!("!{} {field}", object.name)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_differences_are_sent() {
    let mut store = Store::default();
    let text = service("a", "10.0.0.1") + &service("b", "10.0.0.2");
    assert_eq!(update(&mut store, vec![file("x", &text)]), ["+a 10.0.0.1", "+b 10.0.0.2"]);
    assert!(update(&mut store, vec![file("x", &text)]).is_empty());
    let text = service("c", "10.0.0.3") + &service("b", "10.0.0.9");
    let events = update(&mut store, vec![file("x", &text)]);
    assert_eq!(events, ["-a", "+b 10.0.0.9", "+c 10.0.0.3"]);
    // Moved to another file in one batch: nothing changed.
    assert!(update(&mut store, vec![gone("x"), file("y", &text)]).is_empty());
    assert_eq!(update(&mut store, vec![gone("y")]), ["-b", "-c"]);
    assert!(store.holders.is_empty());
}

#[test]
fn the_last_file_counts_and_the_other_takes_over() {
    let mut store = Store::default();
    let a = || file("a", &service("s", "10.0.0.1"));
    let b = || file("b", &service("s", "10.0.0.2"));
    let (events, problems) = store.update(vec![b(), a()]);
    assert_eq!(events.iter().map(print).collect::<Vec<_>>(), ["+s 10.0.0.2"]);
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, ["b: Service default/s: is also in a; this file counts"]);
    // An edit of the one that does not count.
    assert!(update(&mut store, vec![file("a", &service("s", "10.0.0.7"))]).is_empty());
    assert_eq!(update(&mut store, vec![gone("b")]), ["+s 10.0.0.7"]);
    assert_eq!(update(&mut store, vec![b()]), ["+s 10.0.0.2"]);
    assert_eq!(update(&mut store, vec![gone("a")]), [""; 0]);
    assert_eq!(update(&mut store, vec![gone("b")]), ["-s"]);
}

#[test]
fn twice_in_one_file_is_a_warning() {
    let mut store = Store::default();
    let text = service("s", "10.0.0.1") + &service("s", "10.0.0.2");
    let (events, problems) = store.update(vec![file("a", &text)]);
    assert_eq!(events.iter().map(print).collect::<Vec<_>>(), ["+s 10.0.0.2"]);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].severity, Severity::Warning);
}

#[test]
fn a_broken_object_keeps_its_state() {
    let mut store = Store::default();
    let good = service("a", "10.0.0.1");
    update(&mut store, vec![file("x", &good)]);
    let bad = broken("a") + &service("b", "10.0.0.2");
    assert_eq!(update(&mut store, vec![file("x", &bad)]), ["+b 10.0.0.2", "!a spec"]);
    // The same fault is not reported again.
    assert!(update(&mut store, vec![file("x", &bad)]).is_empty());
    // Repaired without a change: it is sent, for the fault to be forgotten.
    assert_eq!(update(&mut store, vec![file("x", &good)]), ["-b", "+a 10.0.0.1"]);
    assert!(update(&mut store, vec![file("x", &good)]).is_empty());
    // Broken, then removed.
    update(&mut store, vec![file("x", &broken("a"))]);
    assert_eq!(update(&mut store, vec![file("x", "")]), ["-a"]);
    assert!(store.reported.is_empty() && store.sent.is_empty());
}

#[test]
fn a_broken_document_keeps_what_it_may_have_held() {
    let mut store = Store::default();
    update(&mut store, vec![file("x", &(service("a", "10.0.0.1") + &service("b", "10.0.0.2")))]);
    let text = format!("kind: Service\nmetadata: [\n---\n{}", service("b", "10.0.0.3"));
    let (events, problems) = store.update(vec![file("x", &text)]);
    assert_eq!(events.iter().map(print).collect::<Vec<_>>(), ["+b 10.0.0.3"]);
    assert_eq!(problems.len(), 1);
    assert!(update(&mut store, vec![file("x", "]")]).is_empty());
    assert_eq!(update(&mut store, vec![file("x", "")]), ["-a", "-b"]);
}

#[test]
fn everything_has_each_kind_once() {
    let mut store = Store::default();
    store.update(vec![file("x", &(service("a", "10.0.0.1") + &broken("b")))]);
    let events = store.everything();
    let kinds: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Replace { kind, objects, malformed } => {
                Some((*kind, objects.len(), malformed.len()))
            }
            _ => None,
        })
        .collect();
    let expected =
        Kind::ALL.map(|kind| if kind == Kind::Service { (kind, 1, 1) } else { (kind, 0, 0) });
    assert_eq!(kinds, expected);
    assert_eq!(print(events.last().unwrap()), "!b spec");
}

#[test]
fn a_broken_override_without_state_leaves_the_other() {
    let mut store = Store::default();
    let changes = vec![file("a", &service("s", "10.0.0.1")), file("b", &broken("s"))];
    assert_eq!(update(&mut store, changes), ["+s 10.0.0.1", "!s spec"]);
    // The good one goes: what was sent stays, because the object is still there.
    assert!(update(&mut store, vec![gone("a")]).is_empty());
    assert_eq!(update(&mut store, vec![gone("b")]), ["-s"]);
}
