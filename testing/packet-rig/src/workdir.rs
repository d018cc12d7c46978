//! Directories for manifests and logs, removed with their owner or by the next run.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::error::{Result, RigError};

/// The start of every directory's name; the process number follows.
const PREFIX: &str = "packet-rig-";

/// A directory of this process, removed when dropped.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    /// Makes a new directory whose name contains this process's number and `name`. The first call
    /// in a process also removes the directories of processes that no longer exist.
    pub fn new(name: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(|| sweep(&env::temp_dir()));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = env::temp_dir().join(format!("{PREFIX}{}-{number}-{name}", process::id()));
        fs::create_dir(&path).map_err(RigError::io(format!("create {}", path.display())))?;
        Ok(Self { path })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory inside.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(RigError::io(format!("create {}", path.display())))?;
        Ok(path)
    }

    /// Writes the file `name` of the directory `directory` inside so that readers see the old
    /// content or the new, and never half of it.
    pub fn replace(&self, directory: &str, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.directory(directory)?.join(name);
        let fresh = self.path.join("replacement");
        fs::write(&fresh, content)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(RigError::io(format!("write {}", path.display())))?;
        Ok(path)
    }

    /// Removes the file `name` of the directory `directory` inside.
    pub fn remove(&self, directory: &str, name: &str) -> Result<()> {
        let path = self.path.join(directory).join(name);
        fs::remove_file(&path).map_err(RigError::io(format!("remove {}", path.display())))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes directories of processes that no longer exist.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split('-').next())
            .and_then(|number| number.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dead_processes_left_is_swept_and_what_lives_is_kept() {
        let parent = WorkDir::new("sweep").unwrap();
        // Process numbers end below 2^22.
        let dead = parent.directory("packet-rig-4194305-0-dead").unwrap();
        let living = parent.directory(&format!("packet-rig-{}-0-living", process::id())).unwrap();
        let foreign = parent.directory("something-else").unwrap();
        sweep(parent.path());
        assert!(!dead.exists() && living.exists() && foreign.exists());
    }

    #[test]
    fn files_are_replaced_and_all_is_removed_in_the_end() {
        let directory = WorkDir::new("files/../x").unwrap();
        let path = directory.replace("m", "a.yaml", "one").unwrap();
        directory.replace("m", "a.yaml", "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        directory.remove("m", "a.yaml").unwrap();
        assert!(!path.exists());
        let root = directory.path().to_owned();
        drop(directory);
        assert!(!root.exists());
    }
}
