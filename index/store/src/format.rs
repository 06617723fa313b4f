//! Database format of the cache, and migration between formats. Compatible versions share a format
//! (`migration.rs`).

use crate::{Error, StoreOptions};
use crate::{postgres, sqlite};
use std::path::Path;

/// The newest format that this version knows, which it writes.
pub fn newest_format(store: &StoreOptions) -> usize {
    match store {
        StoreOptions::Sqlite => sqlite::migrations::NEWEST,
        StoreOptions::Postgres(_) => postgres::format::NEWEST,
    }
}

/// Migrates a cache to format `to`, up or down. No process may have it open. Returns the previous format; None if there
/// is no cache. `data_dir` contains the file of a file-based cache.
pub async fn migrate(store: &StoreOptions, data_dir: &Path, to: usize) -> Result<Option<usize>, Error> {
    if !(1..=newest_format(store)).contains(&to) {
        return Err(Error::StoreFormat(format!(
            "this version supports the formats 1 to {}, not {to}",
            newest_format(store)
        )));
    }
    match store {
        StoreOptions::Sqlite => sqlite::migrations::migrate_file(data_dir, to).await,
        StoreOptions::Postgres(options) => postgres::format::migrate(options, to).await,
    }
}

/// Deletes the database, or its tables. Returns false if there was none. `data_dir` contains the file of a
/// file-based cache.
pub async fn discard(store: &StoreOptions, data_dir: Option<&Path>) -> Result<bool, Error> {
    match store {
        StoreOptions::Sqlite => data_dir.map_or(Ok(false), sqlite::discard),
        StoreOptions::Postgres(options) => postgres::format::discard(options).await,
    }
}
