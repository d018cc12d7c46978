//! Programs of iptables that a test makes fail.

use std::{
    env,
    fmt::Display,
    fs,
    ops::Range,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use switchyard_model::IpFamily;
use tempfile::TempDir;

/// Stands in front of `iptables-restore`. The file `range` has the runs that fail; a file with the
/// name of the program has the comment of the rules that are refused, or nothing if all are.
const RESTORE: &str = r#"#!/bin/sh
refuse() {
    cat > /dev/null
    echo "refused by a test" >&2
    exit 1
}
if [ -e DIRECTORY/range ]; then
    read from end < DIRECTORY/range
    run=$(wc -c < DIRECTORY/runs)
    printf . >> DIRECTORY/runs
    if [ "$run" -ge "$from" ] && [ "$run" -lt "$end" ]; then
        printf . >> DIRECTORY/refused
        refuse
    fi
fi
if [ -e DIRECTORY/BASE ]; then
    comment=$(cat DIRECTORY/BASE)
    [ "$comment" ] || refuse
    sed "s|^\(-[AI] .*$comment.*\)|\1 --no-such-option|" | PROGRAM "$@"
    exit
fi
exec PROGRAM "$@"
"#;

/// The installed programs of one flavour (`legacy` or `nft`), whose runs of `iptables-restore` can
/// be refused.
pub struct RefusableIptables {
    directory: TempDir,
}

impl RefusableIptables {
    /// Makes a directory of programs that refuse nothing.
    ///
    /// # Panics
    ///
    /// If a program is not installed.
    pub fn new(flavour: impl Display) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for (base, suffix) in IpFamily::ALL
            .map(base)
            .into_iter()
            .flat_map(|base| ["", "-save", "-restore"].map(|suffix| (base, suffix)))
        {
            let name = format!("{base}-{flavour}{suffix}");
            let (installed, path) = (installed(&name), directory.path().join(&name));
            if suffix != "-restore" {
                symlink(installed, path).expect("a link");
                continue;
            }
            let script = RESTORE
                .replace("DIRECTORY", directory.path().to_str().expect("text"))
                .replace("BASE", base)
                .replace("PROGRAM", &installed);
            fs::write(&path, script).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        Self { directory }
    }

    /// The directory of the programs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Refuses these runs of the restoring programs, counted from now on.
    pub fn refuse(&self, runs: Range<usize>) {
        for name in ["range", "runs", "refused"] {
            self.write(name, None);
        }
        if !runs.is_empty() {
            self.write("runs", Some(""));
            // The shell counts in fewer bits.
            let range = format!("{} {}\n", runs.start, runs.end.min(1_000_000));
            self.write("range", Some(&range));
        }
    }

    /// Returns the number of runs that were refused since the last call of
    /// [`refuse`](Self::refuse).
    pub fn refused(&self) -> usize {
        fs::read(self.directory().join("refused")).map_or(0, |dots| dots.len())
    }

    /// Refuses the rules of a family that have a comment, or all of them, and no others.
    pub fn refuse_part(&self, part: Option<(IpFamily, Option<String>)>) {
        for family in IpFamily::ALL {
            let part = part.as_ref().filter(|(refused, _)| *refused == family);
            self.write(base(family), part.map(|(_, comment)| comment.as_deref().unwrap_or("")));
        }
    }

    fn write(&self, name: &str, text: Option<&str>) {
        let path = self.directory().join(name);
        match text {
            Some(text) => fs::write(path, text).expect("written"),
            None => drop(fs::remove_file(path)),
        }
    }
}

fn base(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    }
}

/// The path of an installed program.
fn installed(name: &str) -> String {
    let path = env::var("PATH").expect("a path");
    let found = path.split(':').map(|directory| format!("{directory}/{name}"));
    let mut found = found.filter(|path| Path::new(path).exists());
    found.next().unwrap_or_else(|| panic!("{name} is not installed"))
}
