//! The program under test: where it is, and whether it is built from the present sources.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::error::{Result, RigError};

/// Finds the program to test: the one that `SWITCHYARD_BIN` names, else `switchyard` in the
/// directory that cargo builds into.
///
/// # Errors
///
/// If there is no such program, or if cargo's is older than one of the sources that it was built
/// from: a test of this crate alone does not build the program, and would test an old one.
pub fn find() -> Result<PathBuf> {
    if let Some(path) = env::var_os("SWITCHYARD_BIN") {
        let path = PathBuf::from(path);
        return match path.is_file() {
            true => Ok(path),
            false => Err(RigError::Setup(format!("SWITCHYARD_BIN: no file {}", path.display()))),
        };
    }
    built("switchyard")
}

/// Finds a program of the workspace in the directory that cargo builds into.
///
/// # Errors
///
/// If there is no such program, or if the program is older than one of its sources.
pub fn built(name: &str) -> Result<PathBuf> {
    let own = env::current_exe()
        .map_err(|error| RigError::Setup(format!("this program's path is unknown: {error}")))?;
    // Tests are built into target/debug/deps, programs into target/debug.
    let mut built = own.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let built = built.find(|path| path.is_file()).ok_or_else(|| {
        RigError::Setup(format!(
            "build {name} first (cargo build --workspace --bins), or set SWITCHYARD_BIN"
        ))
    })?;
    match newer_source(&built) {
        Some(source_file) => Err(RigError::Setup(format!(
            "{} is older than {}: build it again (cargo build --workspace --bins)",
            built.display(),
            source_file.display()
        ))),
        None => Ok(built),
    }
}

/// A source of the program that is newer than the program, or that is gone. Cargo lists the sources
/// beside the program, in a file of the same name that ends in `.d`; without the list the answer is
/// `None`.
fn newer_source(binary: &Path) -> Option<PathBuf> {
    let built = modified(binary)?;
    let list = fs::read_to_string(binary.with_extension("d")).ok()?;
    sources(&list).find(|source| modified(source).is_none_or(|time| time > built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// The absolute paths in a rule of a makefile, `program: source source ...`, with spaces escaped.
fn sources(list: &str) -> impl Iterator<Item = PathBuf> {
    let sources = list.split_once(": ").map_or("", |(_, sources)| sources);
    let sources = sources.trim_end().replace("\\ ", "\0");
    let paths: Vec<PathBuf> =
        sources.split(' ').map(|source| source.replace('\0', " ").into()).collect();
    paths.into_iter().filter(|path: &PathBuf| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;
    use crate::workdir::WorkDir;

    #[test]
    fn a_program_older_than_a_source_is_noticed() {
        let directory = WorkDir::new("binary").unwrap();
        let file = |name: &str| directory.replace("d", name, "").unwrap();
        let (binary, first, second) = (file("program"), file("a.rs"), file("b c.rs"));
        assert_eq!(newer_source(&binary), None, "nothing is listed");

        let path = |path: &Path| path.to_str().unwrap().replace(' ', "\\ ");
        let list = format!("{}: {} {}\n", path(&binary), path(&first), path(&second));
        directory.replace("d", "program.d", &list).unwrap();
        let set = |path: &Path, seconds| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };
        set(&binary, 1000);
        set(&first, 900);
        set(&second, 1000);
        assert_eq!(newer_source(&binary), None);
        set(&second, 1001);
        assert_eq!(newer_source(&binary), Some(second.clone()));
        set(&second, 900);
        fs::remove_file(&first).unwrap();
        assert_eq!(newer_source(&binary), Some(first));
    }
}
