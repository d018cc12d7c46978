//! The crate compiles for any system: what belongs to one is in files that are named after what they are for.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What only Linux, or only Windows, has.
const OF_A_SYSTEM: [&str; 7] = [
    "intake/addresses/linux.rs",
    "intake/addresses/windows.rs",
    "intake/redirect/linux.rs",
    "intake/redirect/predecessor.rs",
    "intake/redirect/sockets.rs",
    // The choice between them.
    "intake/redirect/mod.rs",
    // Tests on a kernel of Linux.
    "kernel_tests.rs",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn only_the_intakes_of_a_system_name_what_it_has() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let of_a_system = OF_A_SYSTEM.map(|path| src.join(path));
    let all = sources(&src);
    assert!(of_a_system.iter().all(|path| all.contains(path)));
    for path in all.into_iter().filter(|path| !of_a_system.contains(path)) {
        let text = fs::read_to_string(&path).unwrap();
        for name in [
            "os::unix",
            "os::fd",
            "libc",
            "rustix",
            "windows_sys",
            "switchyard_conntrack",
            "switchyard_interfaces",
            "switchyard_iptables",
            "switchyard_nft",
            "switchyard_xtables",
        ] {
            assert!(!text.contains(name), "{} names {name}", path.display());
        }
    }
}
