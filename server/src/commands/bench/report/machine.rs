//! The machine and the build that a report was measured with.

use std::num::NonZeroUsize;

use anyhow::Context;
use serde::Serialize;

/// Facts on which the figures depend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Machine {
    pub cores: usize,
    pub memory_bytes: u64,
    pub kernel: String,
    /// `debug` or `release`; other optimized profiles, such as `dist`, are also `release`.
    pub build: &'static str,
    pub version: &'static str,
    /// Commit of the build; empty if it was built without `CROWSNEST_COMMIT`.
    pub commit: &'static str,
}

impl Machine {
    pub(super) fn read() -> anyhow::Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        Ok(Self {
            cores: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            memory_bytes: total_memory(&read("/proc/meminfo")?).context("no MemTotal in /proc/meminfo")?,
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("CROWSNEST_COMMIT").unwrap_or_default(),
        })
    }
}

/// `MemTotal` of `/proc/meminfo` in bytes.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_read() {
        let text = "MemFree:         1 kB\nMemTotal:       24576 kB\n";
        assert_eq!(total_memory(text), Some(24 << 20));
        assert_eq!(total_memory("MemFree: 1 kB\n"), None);
    }
}
