//! A configuration file as the kubelet mounts it from a ConfigMap.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// A directory in which a link leads to one revision of the file.
pub(crate) struct ConfigMap {
    root: PathBuf,
    revision: u32,
}

impl ConfigMap {
    /// The first revision, in a new directory.
    pub(crate) fn new(root: &Path, text: &str) -> Self {
        let new = Self { root: root.to_owned(), revision: 1 };
        fs::create_dir_all(root.join("..1")).unwrap();
        fs::write(root.join("..1/config.conf"), text).unwrap();
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/config.conf", new.path()).unwrap();
        new
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.root.join("config.conf")
    }

    /// Puts another revision in the place of the last one, in one step.
    pub(crate) fn exchange(&mut self, text: &str) {
        let before = self.root.join(format!("..{}", self.revision));
        self.revision += 1;
        let name = format!("..{}", self.revision);
        fs::create_dir(self.root.join(&name)).unwrap();
        fs::write(self.root.join(&name).join("config.conf"), text).unwrap();
        symlink(&name, self.root.join("..data_tmp")).unwrap();
        fs::rename(self.root.join("..data_tmp"), self.root.join("..data")).unwrap();
        fs::remove_dir_all(before).unwrap();
    }
}
