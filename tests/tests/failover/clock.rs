//! A wall clock with an adjustable offset for a whole process, by a preloaded library.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

const SOURCE: &str = include_str!("clock.c");

/// Clock of the processes that are started with its environment.
pub struct Clock {
    /// The preloaded library.
    library: PathBuf,
    /// File with the offset, which the library maps into memory.
    offset_path: PathBuf,
    offset_file: File,
}

impl Clock {
    /// Compiles the library with `cc` and sets the offset to 0.
    pub fn new(folder: &Path) -> Result<Self> {
        let (source, library, offset_path) = (folder.join("clock.c"), folder.join("clock.so"), folder.join("offset"));
        fs::write(&source, SOURCE)?;
        let output = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
        let output = output.context("cannot run cc")?;
        ensure!(output.status.success(), "cc failed: {}", String::from_utf8_lossy(&output.stderr));
        let offset_file = File::create_new(&offset_path)?;
        let clock = Self { library, offset_path, offset_file };
        clock.set_offset(0)?;
        Ok(clock)
    }

    /// Environment of a process that uses this clock.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.library.clone().into()), ("CLOCK_OFFSET_FILE", self.offset_path.clone().into())]
    }

    /// Sets the offset in seconds for all processes that use this clock.
    pub fn set_offset(&self, seconds: i64) -> Result<()> {
        Ok(self.offset_file.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }
}
