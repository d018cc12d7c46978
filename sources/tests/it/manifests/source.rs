//! The manifest source on real directories: the files that it reads and the changes that it
//! notices.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use switchyard_core::objects::{Event, Kind, Object};
use switchyard_sources::manifests::{self, ManifestsError};
use tempfile::TempDir;
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
    time,
};

/// Far more than a change needs, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longer than a change needs, to see that nothing comes.
const SILENCE: Duration = Duration::from_millis(150);

fn service(name: &str, ip: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: {ip}\n"
    )
}

struct Source {
    dir: TempDir,
    events: Receiver<Event>,
    task: JoinHandle<Result<(), ManifestsError>>,
}

impl Source {
    /// Starts on a directory that `fill` made, and returns the first Services as `name ip`.
    async fn start(fill: impl FnOnce(&Path)) -> (Self, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("m")).unwrap();
        fill(&dir.path().join("m"));
        Self::start_in(dir).await
    }

    async fn start_in(dir: TempDir) -> (Self, Vec<String>) {
        let (sender, events) = mpsc::channel(64);
        let task = tokio::spawn(manifests::run(dir.path().join("m"), sender));
        let mut source = Self { dir, events, task };
        let mut services = Vec::new();
        for expected in Kind::ALL {
            match source.next().await {
                Event::Replace { kind, objects, malformed } => {
                    assert_eq!(kind, expected);
                    assert!(malformed.is_empty());
                    if kind == Kind::Service {
                        services = objects.iter().map(print).collect();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        (source, services)
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.dir.path().join("m").join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap();
    }

    fn rename_into(&self, file: &str, text: &str) {
        let other = self.dir.path().join("new");
        fs::write(&other, text).unwrap();
        fs::rename(other, self.path(file)).unwrap();
    }

    async fn next(&mut self) -> Event {
        time::timeout(PATIENCE, self.events.recv()).await.expect("an event").expect("a source")
    }

    /// The next change, as `+name ip`, `-name` or `!name field`.
    async fn change(&mut self) -> String {
        match self.next().await {
            Event::Apply(object) => format!("+{}", print(&object)),
            Event::Delete(key) => format!("-{}", key.name),
            Event::Malformed { object, field, message } => {
                assert!(message.contains("document"), "{message}");
                format!("!{} {field}", object.name)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn silence(&mut self) {
        if let Ok(event) = time::timeout(SILENCE, self.events.recv()).await {
            panic!("{event:?}");
        }
    }
}

fn print(object: &Object) -> String {
    match object {
        Object::Service(s) => format!("{} {}", s.metadata.name, s.spec.cluster_ip),
        other => other.key().to_string(),
    }
}

#[tokio::test]
async fn the_tree_is_read_without_hidden_and_foreign_files() {
    let (source, services) = Source::start(|dir| {
        fs::create_dir_all(dir.join("deep/er")).unwrap();
        fs::create_dir(dir.join(".git")).unwrap();
        symlink("..", dir.join("deep/loop")).unwrap();
        fs::write(dir.join("a.yaml"), service("a", "10.0.0.1") + &service("b", "10.0.0.2"))
            .unwrap();
        fs::write(dir.join("deep/er/c.yml"), service("c", "10.0.0.3")).unwrap();
        fs::write(
            dir.join("d.json"),
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "d"}}"#,
        )
        .unwrap();
        fs::write(dir.join(".hidden.yaml"), service("x", "10.0.0.9")).unwrap();
        fs::write(dir.join(".git/y.yaml"), service("y", "10.0.0.9")).unwrap();
        fs::write(dir.join("readme.md"), service("z", "10.0.0.9")).unwrap();
    })
    .await;
    assert_eq!(services, ["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3", "d "]);
    // Through the loop, files would be there more than once.
    assert_eq!(manifests::read_dir(&source.path("")).unwrap().1, []);
    assert!(!source.task.is_finished());
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, _events) = mpsc::channel::<Event>(1);
    let error = manifests::run(dir.path().join("absent"), sender).await.unwrap_err();
    assert!(matches!(error, ManifestsError::Directory { .. }));
    assert!(error.to_string().contains("absent"), "{error}");
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(manifests::read_dir(&dir.path().join("file")).is_err());
}

#[tokio::test]
async fn the_source_ends_with_its_receiver() {
    let (source, _) = Source::start(|_| ()).await;
    drop(source.events);
    time::timeout(PATIENCE, source.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn writes_renames_links_and_deletions_are_noticed() {
    let (mut source, services) = Source::start(|_| ()).await;
    assert!(services.is_empty());
    source.write("a.yaml", &service("a", "10.0.0.1"));
    assert_eq!(source.change().await, "+a 10.0.0.1");
    // In place, then by rename.
    source.write("a.yaml", &service("a", "10.0.0.2"));
    assert_eq!(source.change().await, "+a 10.0.0.2");
    source.rename_into("a.yaml", &service("a", "10.0.0.3"));
    assert_eq!(source.change().await, "+a 10.0.0.3");
    // Without a change of meaning.
    source.write("a.yaml", &("# comment\n".to_owned() + &service("a", "10.0.0.3")));
    source.silence().await;
    // Renamed within the directory: the same object in another file.
    fs::rename(source.path("a.yaml"), source.path("b.yaml")).unwrap();
    source.silence().await;
    fs::hard_link(source.path("b.yaml"), source.path("z.json")).unwrap();
    source.silence().await;
    fs::write(source.dir.path().join("other"), service("l", "10.0.0.4")).unwrap();
    symlink("../other", source.path("l.yaml")).unwrap();
    assert_eq!(source.change().await, "+l 10.0.0.4");
    fs::remove_file(source.path("l.yaml")).unwrap();
    assert_eq!(source.change().await, "-l");
    fs::rename(source.path("b.yaml"), source.path("b.bak")).unwrap();
    assert_eq!(source.change().await, "-a");
}

#[tokio::test]
async fn a_file_is_read_when_its_writer_closes_it() {
    use std::io::Write;
    let (mut source, _) = Source::start(|_| ()).await;
    let mut file = fs::File::create(source.path("a.yaml")).unwrap();
    file.write_all(service("a", "10.0.0.1").as_bytes()).unwrap();
    source.silence().await;
    file.write_all(service("b", "10.0.0.2").as_bytes()).unwrap();
    drop(file);
    assert_eq!(source.change().await, "+a 10.0.0.1");
    assert_eq!(source.change().await, "+b 10.0.0.2");
}

#[tokio::test]
async fn a_mounted_config_map_is_followed() {
    let (mut source, services) = Source::start(|dir| {
        fs::create_dir(dir.join("..2026_01")).unwrap();
        fs::write(dir.join("..2026_01/a.yaml"), service("a", "10.0.0.1")).unwrap();
        symlink("..2026_01", dir.join("..data")).unwrap();
        symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
    })
    .await;
    assert_eq!(services, ["a 10.0.0.1"]);
    // As the kubelet does it.
    fs::create_dir(source.path("..2026_02")).unwrap();
    source.write("..2026_02/a.yaml", &service("a", "10.0.0.2"));
    symlink("..2026_02", source.path("..data_tmp")).unwrap();
    fs::rename(source.path("..data_tmp"), source.path("..data")).unwrap();
    fs::remove_dir_all(source.path("..2026_01")).unwrap();
    assert_eq!(source.change().await, "+a 10.0.0.2");
    source.silence().await;
}

#[tokio::test]
async fn directories_come_and_go() {
    let (mut source, _) = Source::start(|_| ()).await;
    fs::create_dir(source.path("d")).unwrap();
    source.write("d/a.yaml", &service("a", "10.0.0.1"));
    assert_eq!(source.change().await, "+a 10.0.0.1");
    source.write("d/a.yaml", &service("a", "10.0.0.2"));
    assert_eq!(source.change().await, "+a 10.0.0.2");
    // A whole tree is moved in, and is watched.
    let outside = source.dir.path().join("t");
    fs::create_dir_all(outside.join("u")).unwrap();
    fs::write(outside.join("u/b.yaml"), service("b", "10.0.0.3")).unwrap();
    fs::rename(&outside, source.path("t")).unwrap();
    assert_eq!(source.change().await, "+b 10.0.0.3");
    source.write("t/u/b.yaml", &service("b", "10.0.0.4"));
    assert_eq!(source.change().await, "+b 10.0.0.4");
    fs::rename(source.path("t"), &outside).unwrap();
    assert_eq!(source.change().await, "-b");
    fs::write(outside.join("u/b.yaml"), service("b", "10.0.0.5")).unwrap();
    source.silence().await;
    fs::remove_dir_all(source.path("d")).unwrap();
    assert_eq!(source.change().await, "-a");
}

#[tokio::test]
async fn the_directory_itself_is_swapped() {
    let dir = tempfile::tempdir().unwrap();
    for (release, ip) in [("r1", "10.0.0.1"), ("r2", "10.0.0.2")] {
        fs::create_dir(dir.path().join(release)).unwrap();
        fs::write(dir.path().join(release).join("a.yaml"), service("a", ip)).unwrap();
    }
    symlink("r1", dir.path().join("m")).unwrap();
    let (mut source, services) = Source::start_in(dir).await;
    assert_eq!(services, ["a 10.0.0.1"]);
    let link = source.dir.path().join("link");
    symlink("r2", &link).unwrap();
    fs::rename(&link, source.dir.path().join("m")).unwrap();
    assert_eq!(source.change().await, "+a 10.0.0.2");
    source.write("a.yaml", &service("a", "10.0.0.3"));
    assert_eq!(source.change().await, "+a 10.0.0.3");
    // While it is away, nothing changes.
    fs::rename(source.dir.path().join("m"), &link).unwrap();
    source.silence().await;
    symlink("r1", source.dir.path().join("m")).unwrap();
    assert_eq!(source.change().await, "+a 10.0.0.1");
}

#[tokio::test]
async fn what_is_broken_keeps_its_state() {
    let (mut source, _) = Source::start(|dir| {
        let text = service("a", "10.0.0.1") + &service("b", "10.0.0.2");
        fs::write(dir.join("x.yaml"), text).unwrap();
    })
    .await;
    let broken = service("a", "10.0.0.1").replace("clusterIP: ", "ports: ");
    source.write("x.yaml", &(broken + &service("b", "10.0.0.3")));
    assert_eq!(source.change().await, "+b 10.0.0.3");
    assert_eq!(source.change().await, "!a spec.ports");
    // No YAML at all, and no text at all.
    source.write("x.yaml", "kind: [");
    source.silence().await;
    fs::write(source.path("x.yaml"), [0xff, 0xfe, 0]).unwrap();
    source.silence().await;
    source.write("x.yaml", &service("a", "10.0.0.1"));
    assert_eq!(source.change().await, "-b");
    assert_eq!(source.change().await, "+a 10.0.0.1");
}

/// A batch of a thousand files is complete, and single changes after it arrive one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_files_and_single_changes() {
    let (mut source, services) = Source::start(|dir| {
        for index in 0..1000 {
            let text = service(&format!("s{index:03}"), "10.0.0.1");
            fs::write(dir.join(format!("{index}.yaml")), text).unwrap();
        }
    })
    .await;
    assert_eq!(services.len(), 1000);
    for index in 0..1000 {
        source.rename_into(&format!("{index}.yaml"), &service(&format!("s{index:03}"), "10.0.0.2"));
    }
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 1000 {
        let change = source.change().await;
        assert!(change.ends_with(" 10.0.0.2"), "{change}");
        seen.insert(change);
    }
    for round in 0..40 {
        let ip = format!("10.1.0.{round}");
        source.write("7.yaml", &service("s007", &ip));
        assert_eq!(source.change().await, format!("+s007 {ip}"));
    }
}
