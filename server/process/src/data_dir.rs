//! Data directory of `crowsnest up` and `crowsnest serve`. A lock keeps out a second process. Everything except
//! `control-plane/` and `members/` can be deleted and is created again.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Version of the layout that this build writes. Higher versions on disk are rejected, lower ones would be migrated.
pub const LAYOUT_VERSION: u32 = 1;

/// Reason why a data directory cannot be opened. Each message names the next step.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("cannot write to data directory {path}; choose another with --data-dir")]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("data directory {path} is in use by another crowsnest; stop it or choose another with --data-dir")]
    Locked { path: PathBuf },
    #[error(
        "data directory {path} was written by a newer crowsnest (layout {found}, this one supports {LAYOUT_VERSION}); upgrade crowsnest, or start over with --reset"
    )]
    Newer { path: PathBuf, found: u32 },
    #[error("{path} is not a crowsnest data directory (it contains other files); choose an empty one with --data-dir")]
    Foreign { path: PathBuf },
    #[error("cannot parse the layout file {path}; start over with --reset")]
    Damaged { path: PathBuf, source: serde_json::Error },
}

#[derive(Debug, Serialize, Deserialize)]
struct Layout {
    #[serde(rename = "layout")]
    version: u32,
    #[serde(rename = "crowsnest")]
    crowsnest_version: String,
}

/// A locked data directory of a known version. The lock is held until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    root: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates or opens the directory, locks it and checks its version; with `reset` it is emptied after locking.
    pub fn open(root: &Path, reset: bool) -> Result<Self, DataDirError> {
        let unwritable = |source| DataDirError::Unwritable { path: root.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(unwritable)?;
        let lock_path = root.join("LOCK");
        let layout_path = root.join("layout.json");
        if !lock_path.exists() && !layout_path.exists() {
            let mut entries = fs::read_dir(root).map_err(unwritable)?;
            if entries.next().is_some() {
                return Err(DataDirError::Foreign { path: root.to_owned() });
            }
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(unwritable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DataDirError::Locked { path: root.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(unwritable(source)),
        }
        if reset {
            remove_all_except_lock(root).map_err(unwritable)?;
        }
        match fs::read(&layout_path) {
            Ok(bytes) => {
                let layout: Layout = serde_json::from_slice(&bytes)
                    .map_err(|source| DataDirError::Damaged { path: layout_path.clone(), source })?;
                if layout.version > LAYOUT_VERSION {
                    return Err(DataDirError::Newer { path: root.to_owned(), found: layout.version });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let layout = Layout { version: LAYOUT_VERSION, crowsnest_version: env!("CARGO_PKG_VERSION").into() };
                let text = serde_json::to_vec_pretty(&layout).map_err(|e| unwritable(io::Error::other(e)))?;
                write_private(&layout_path, &text).map_err(unwritable)?;
            }
            Err(source) => return Err(unwritable(source)),
        }
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    /// Returns `<root>/<name>`, created with access for the owner only.
    pub fn dir(&self, name: &str) -> Result<PathBuf, DataDirError> {
        let path = self.root.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|source| DataDirError::Unwritable { path: path.clone(), source })?;
        Ok(path)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads a small state file; `None` if it is missing or cannot be decoded, so that callers recreate it.
    pub fn read_state<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        let bytes = fs::read(self.root.join(name)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Replaces a small state file, readable by the owner only.
    pub fn write_state<T: Serialize>(&self, name: &str, state: &T) -> Result<(), DataDirError> {
        let path = self.root.join(name);
        let unwritable = |source| DataDirError::Unwritable { path: path.clone(), source };
        let text = serde_json::to_vec_pretty(state).map_err(|e| unwritable(io::Error::other(e)))?;
        write_private(&path, &text).map_err(unwritable)
    }
}

/// Writes a file atomically (rename), with mode 0600 from its first byte because it may contain keys. A link or a file
/// with wider permissions at the temporary path is removed and never written to.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

fn remove_all_except_lock(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name() == "LOCK" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directories_are_locked() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        let first = DataDir::open(&root, false).unwrap();
        assert!(matches!(DataDir::open(&root, false), Err(DataDirError::Locked { .. })));
        drop(first);
        DataDir::open(&root, false).unwrap();
    }

    #[test]
    fn newer_layouts_are_rejected_and_reset_helps() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        drop(DataDir::open(&root, false).unwrap());
        fs::write(root.join("layout.json"), r#"{"layout":99,"crowsnest":"9.0.0"}"#).unwrap();
        fs::create_dir(root.join("members")).unwrap();
        assert!(matches!(DataDir::open(&root, false), Err(DataDirError::Newer { found: 99, .. })));
        drop(DataDir::open(&root, true).unwrap());
        assert!(!root.join("members").exists());
    }

    #[test]
    fn directories_with_other_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        assert!(matches!(DataDir::open(dir.path(), true), Err(DataDirError::Foreign { .. })));
        assert!(dir.path().join("thesis.tex").exists());
    }

    #[test]
    fn private_files_are_readable_by_the_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let open_to_all = |path: &Path| {
            fs::write(path, "before").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        };
        let (path, temporary) = (dir.path().join("key"), dir.path().join("key.new"));
        open_to_all(&path);
        open_to_all(&temporary);
        write_private(&path, b"one").unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o600, b"one".to_vec()));
        // A symbolic link at the path is not followed.
        let elsewhere = dir.path().join("elsewhere");
        open_to_all(&elsewhere);
        std::os::unix::fs::symlink(&elsewhere, &temporary).unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o600, b"two".to_vec()));
        assert_eq!(fs::read(&elsewhere).unwrap(), b"before");
    }

    #[test]
    fn directories_are_accessible_by_the_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/data");
        let data = DataDir::open(&root, false).unwrap();
        for path in [root.clone(), data.dir("kubeconfigs").unwrap()] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700, "{}", path.display());
        }
        assert_eq!(fs::metadata(root.join("layout.json")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn paths_below_a_file_are_unwritable() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let error = DataDir::open(&dir.path().join("file/data"), false).unwrap_err();
        assert!(error.to_string().contains("cannot write"), "{error}");
    }
}
