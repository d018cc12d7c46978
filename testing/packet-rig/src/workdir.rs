//! Directories for manifests and logs, removed with their owner.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::error::{Result, RigError};

/// A directory of this process, removed when dropped.
#[derive(Debug)]
pub struct WorkDir(TempDir);

impl WorkDir {
    /// Makes a new directory whose name contains `name`.
    pub fn new(name: &str) -> Result<Self> {
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let made = tempfile::Builder::new().prefix(&format!("packet-rig-{name}-")).tempdir();
        made.map(Self).map_err(RigError::io(format!("create a directory for {name}")))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes a directory inside.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir_all(&path).map_err(RigError::io(format!("create {}", path.display())))?;
        Ok(path)
    }

    /// Writes the file `name` of the directory `directory` inside so that readers see the old
    /// content or the new, and never half of it.
    pub fn replace(&self, directory: &str, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.directory(directory)?.join(name);
        let fresh = self.path().join("replacement");
        fs::write(&fresh, content)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(RigError::io(format!("write {}", path.display())))?;
        Ok(path)
    }

    /// Removes the file `name` of the directory `directory` inside.
    pub fn remove(&self, directory: &str, name: &str) -> Result<()> {
        let path = self.path().join(directory).join(name);
        fs::remove_file(&path).map_err(RigError::io(format!("remove {}", path.display())))
    }
}
