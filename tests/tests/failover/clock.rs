//! A wall clock with an adjustable offset for a whole process, by a preloaded library.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

const SOURCE: &str = include_str!("clock.c");

pub struct Clock {
    library: PathBuf,
    path: PathBuf,
    ahead: File,
}

impl Clock {
    /// Compiled by the linker's C compiler.
    pub fn make(folder: &Path) -> Result<Self> {
        let (source, library, path) = (folder.join("clock.c"), folder.join("clock.so"), folder.join("ahead"));
        fs::write(&source, SOURCE)?;
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
        let built = built.context("running cc")?;
        ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let ahead = File::create_new(&path)?;
        let clock = Self { library, path, ahead };
        clock.set(0)?;
        Ok(clock)
    }

    /// Environment of a process that uses this clock.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.library.clone().into()), ("CLOCK_AHEAD", self.path.clone().into())]
    }

    /// Sets the offset in seconds for all processes that use this clock.
    pub fn set(&self, seconds: i64) -> Result<()> {
        Ok(self.ahead.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }
}
