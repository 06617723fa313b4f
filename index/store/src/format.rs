//! Format of a cache's database: migration between formats, up and down. Versions that only add to a format share it
//! (`migration.rs`).

use crate::{Error, StoreOptions};
use crate::{postgres, sqlite};
use std::path::Path;

/// The format this version writes.
pub fn newest(store: &StoreOptions) -> usize {
    match store {
        StoreOptions::Sqlite => sqlite::migrations::NEWEST,
        StoreOptions::Postgres(_) => postgres::format::NEWEST,
    }
}

/// Brings a cache to format `to`, up or down. Nobody may have it open. From which format it came; none where there is no cache.
/// `data_dir` holds it where it is a file.
pub async fn migrate(store: &StoreOptions, data_dir: &Path, to: usize) -> Result<Option<usize>, Error> {
    if !(1..=newest(store)).contains(&to) {
        return Err(Error::StoreFormat(format!("this version knows the formats 1 to {}, not {to}", newest(store))));
    }
    match store {
        StoreOptions::Sqlite => sqlite::migrations::bring(data_dir, to).await,
        StoreOptions::Postgres(options) => postgres::format::migrate(options, to).await,
    }
}

/// Deletes the database, or its tables. Returns false if there was none. `data_dir` holds it where it is a file.
pub async fn discard(store: &StoreOptions, data_dir: Option<&Path>) -> Result<bool, Error> {
    match store {
        StoreOptions::Sqlite => data_dir.map_or(Ok(false), sqlite::discard),
        StoreOptions::Postgres(options) => postgres::format::discard(options).await,
    }
}
