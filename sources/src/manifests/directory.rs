//! The tree of directories that holds the manifests.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use super::{problem::Problem, syntax::Syntax};

/// The size of the largest file that is read, in MiB.
pub(super) const MOST_MIB: u64 = 256;

/// The properties of a file that change with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Signature {
    /// Whether this is the same file, whose content may be another.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether the file is too large to be read.
    pub(super) fn is_too_large(&self) -> bool {
        self.size > MOST_MIB << 20
    }

    /// Returns the signature of a file, after symbolic links.
    pub(super) fn new(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The content of the tree at one time. All paths are relative to the root.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The manifests, by path.
    pub(super) files: BTreeMap<PathBuf, Signature>,
    /// Directories that could not be listed, and links that lead nowhere: nothing is known about
    /// them and the files below.
    pub(super) unlisted: Vec<PathBuf>,
    /// The problems with these directories.
    pub(super) problems: Vec<Problem>,
    /// The problems with these links.
    pub(super) links: Vec<Problem>,
}

/// Whether a name is hidden, as `..data` of a mounted ConfigMap and editors' files are.
pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

/// Lists the manifests below `root`. Calls `visit` with the path of each directory before the
/// directory is listed, so that the watch that `visit` adds sees files that are made after the
/// listing.
pub(super) fn scan(root: &Path, visit: &mut dyn FnMut(&Path)) -> Scan {
    let mut scan = Scan::default();
    list(root, Path::new(""), &mut Vec::new(), &mut scan, visit);
    scan
}

fn list(
    root: &Path,
    dir: &Path,
    above: &mut Vec<(u64, u64)>,
    scan: &mut Scan,
    visit: &mut dyn FnMut(&Path),
) {
    visit(dir);
    if let Err(error) = list_entries(root, dir, above, scan, visit)
        && !(error.kind() == io::ErrorKind::NotFound && dir != Path::new(""))
    {
        let message = format!("cannot list the directory: {error}");
        scan.problems.push(Problem::with_file(dir, message));
        scan.unlisted.push(dir.to_owned());
    }
}

fn list_entries(
    root: &Path,
    dir: &Path,
    above: &mut Vec<(u64, u64)>,
    scan: &mut Scan,
    visit: &mut dyn FnMut(&Path),
) -> io::Result<()> {
    let metadata = fs::metadata(root.join(dir))?;
    let identity = (metadata.dev(), metadata.ino());
    if above.contains(&identity) {
        // A symbolic link to a directory above.
        return Ok(());
    }
    above.push(identity);
    let listed = fs::read_dir(root.join(dir)).and_then(|entries| {
        for entry in entries {
            let entry = entry?;
            if is_hidden(&entry.file_name()) {
                continue;
            }
            let path = dir.join(entry.file_name());
            // Follows symbolic links.
            let metadata = match fs::metadata(entry.path()) {
                Ok(metadata) => metadata,
                Err(error) => {
                    if entry.path().is_symlink() {
                        let message = format!("the link leads nowhere: {error}");
                        scan.links.push(Problem::with_file(&path, message));
                        scan.unlisted.push(path);
                    }
                    continue;
                }
            };
            if metadata.is_dir() {
                list(root, &path, above, scan, visit);
            } else if metadata.is_file() && Syntax::from_path(&path).is_some() {
                scan.files.insert(path, Signature::new(&metadata));
            }
        }
        Ok(())
    });
    above.pop();
    listed
}
