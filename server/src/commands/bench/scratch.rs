//! Scratch directories of benchmarks.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use tempfile::{Builder, TempDir};

/// The option that selects the parent of scratch directories.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ScratchArgs {
    /// Directory for the temporary files of benchmarks [default: $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR", global = true)]
    scratch_dir: Option<PathBuf>,
}

impl ScratchArgs {
    /// Creates an empty scratch directory, and its parent if that does not exist.
    pub(super) fn create(&self) -> anyhow::Result<ScratchDirectory> {
        let parent = self.scratch_dir.clone().unwrap_or_else(std::env::temp_dir);
        std::fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let directory = Builder::new().prefix("crowsnest-bench-").tempdir_in(&parent);
        let directory = directory.with_context(|| format!("cannot create a directory in {}", parent.display()))?;
        Ok(ScratchDirectory(directory))
    }

    /// The option as arguments of a benchmark in a child process; none by default.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &OsStr> {
        self.scratch_dir.iter().flat_map(|parent| [OsStr::new("--scratch-dir"), parent.as_os_str()])
    }
}

/// An empty directory for the temporary files of a benchmark. Removed when dropped, even after a failure.
#[derive(Debug)]
pub(super) struct ScratchDirectory(TempDir);

impl ScratchDirectory {
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_created_in_the_selected_parent_and_removed_on_drop() {
        let temporary = tempfile::tempdir().unwrap();
        let parent = temporary.path().join("benchmarks");
        let args = ScratchArgs { scratch_dir: Some(parent.clone()) };
        let (first, second) = (args.create().unwrap(), args.create().unwrap());
        assert_ne!(first.path(), second.path());
        assert_eq!(first.path().parent(), Some(parent.as_path()));
        std::fs::write(first.path().join("file"), "").unwrap();
        drop((first, second));
        assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 0);
    }

    #[test]
    fn the_option_is_passed_to_child_processes() {
        let args = ScratchArgs { scratch_dir: Some("/data/bench".into()) };
        assert_eq!(args.arguments().collect::<Vec<_>>(), ["--scratch-dir", "/data/bench"]);
        assert_eq!(ScratchArgs::default().arguments().count(), 0);
    }
}
