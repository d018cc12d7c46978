//! The crate compiles for any system: what belongs to one is in a file of `platform`.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn only_the_platforms_name_a_system() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let of_linux = src.join("platform/linux.rs");
    let mut sources = sources(&src);
    sources.sort();
    assert!(sources.contains(&of_linux) && sources.contains(&src.join("tcp/copy.rs")));
    for path in sources.into_iter().filter(|path| *path != of_linux) {
        let text = fs::read_to_string(&path).unwrap();
        for name in ["os::unix", "os::fd", "os::linux", "os::windows", "libc", "rustix", "RawFd"] {
            assert!(!text.contains(name), "{} names {name}", path.display());
        }
        if !path.starts_with(src.join("platform")) {
            for condition in ["cfg(unix", "cfg(windows", "cfg(target_os", "cfg!("] {
                assert!(!text.contains(condition), "{} has {condition}", path.display());
            }
        }
    }
}
