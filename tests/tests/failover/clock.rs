//! A wall's clock that jumps for the whole of a process: a library that is loaded before all others tells it the time.

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
    /// Built by the compiler that links everything else here.
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

    /// For a process that is to live by it.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        [("LD_PRELOAD", self.library.clone().into()), ("CLOCK_AHEAD", self.path.clone().into())]
    }

    /// So many seconds ahead of the machine's from now on, in all processes that live by it.
    pub fn set(&self, seconds: i64) -> Result<()> {
        Ok(self.ahead.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }
}
