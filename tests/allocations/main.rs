//! Regression test of the allocations of hot paths. Unlike run times, allocations do not depend on the load of the
//! machine.
//!
//! Each path runs once, so that lazily initialised state exists, and is then measured on the thread of the test. The
//! result is compared with `counts.json` ([`golden`]). The counts are those of the dev profile.

mod api_server;
mod cache;
mod fixtures;
mod golden;
mod hot_path;
mod machinery;
mod planner;

use anyhow::{Context, Result, ensure};

use golden::Counts;
use hot_path::HotPath;

fn hot_paths() -> Result<Vec<HotPath>> {
    let mut paths = planner::hot_paths()?;
    paths.extend(machinery::hot_paths()?);
    paths.extend(cache::hot_paths()?);
    paths.extend(api_server::hot_paths()?);
    Ok(paths)
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "the expected counts are those of the dev profile")]
fn hot_paths_allocate_as_expected() -> Result<()> {
    let mut measured = Counts::new();
    for path in hot_paths()? {
        let allocations = path.measure().with_context(|| path.name)?;
        ensure!(measured.insert(path.name.to_owned(), allocations).is_none(), "two hot paths are named {}", path.name);
    }
    if golden::is_update_requested() {
        return golden::write(&measured);
    }
    let deviations = golden::deviations(&golden::read()?, &measured);
    ensure!(
        deviations.is_empty(),
        "{}\nto accept the measured counts, run `{}`",
        deviations.join("\n"),
        golden::UPDATE_COMMAND
    );
    Ok(())
}
