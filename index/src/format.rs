//! The format of a cache's database, as whoever runs versions after one another meets it: bringing it to another one, and throwing it
//! away. Versions that only add to a format share it (`store/migration.rs`); this is for those that do not.

use crate::check::{Rebuild, discard};
use crate::store::{postgres, sqlite};
use crate::{Error, StoreOptions};
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

/// Throws the records away, and what else of the cache is in `data_dir`. Whether there was anything.
pub async fn empty(store: &StoreOptions, data_dir: Option<&Path>) -> Result<bool, Error> {
    let mut there = match store {
        StoreOptions::Sqlite => false,
        StoreOptions::Postgres(options) => postgres::format::discard(options).await?,
    };
    if let Some(data_dir) = data_dir {
        there |= discard(data_dir, Rebuild::Everything)?;
    }
    Ok(there)
}
