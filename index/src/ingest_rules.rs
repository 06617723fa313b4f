//! Records the rules by which the stored objects were ingested, and deletes the cache if they differ at the next start.
//!
//! If new rules withhold more values, the stored objects still contain these values. If more columns are printed, they
//! are missing in the stored objects. Members do not send unchanged objects again, so the cache must be filled again.

use crate::check::{RebuildScope, discard};
use crowsnest_store::ingest::IngestOptions;
use crowsnest_store::{CacheOptions, Error};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;

const FILE: &str = "kept.json";
/// Version of the columns that [`crowsnest_apimachinery::printers`] prints.
const COLUMNS_VERSION: u32 = 4;
/// Version of the rules for values that are always withheld. A cache filled under earlier rules may contain copies
/// of them.
const WITHHELD_VERSION: u32 = 2;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct IngestRules {
    rules: IngestOptions,
    printed: u32,
    #[serde(default)]
    withheld: u32,
}

/// Deletes the files of a cache that was filled by other rules, and records the current rules.
pub(crate) fn apply(options: &CacheOptions) -> Result<(), Error> {
    let path = options.data_dir.join(FILE);
    let fail = |source| Error::Io { path: path.display().to_string(), source };
    let decode = |source| Error::Decode { object: path.display().to_string(), source };
    let current = IngestRules { rules: options.ingest.clone(), printed: COLUMNS_VERSION, withheld: WITHHELD_VERSION };
    let before = match std::fs::read(&path) {
        // An unreadable file counts as other rules.
        Ok(text) => serde_json::from_slice::<IngestRules>(&text).ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(fail(error)),
    };
    if before.as_ref() != Some(&current) && discard(&options.data_dir, RebuildScope::Everything)? {
        tracing::info!("the cache was filled under other rules; filling it again");
    }
    std::fs::create_dir_all(&options.data_dir).map_err(fail)?;
    std::fs::write(&path, serde_json::to_vec(&current).map_err(decode)?).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::sqlite;
    use serde_json::json;

    #[test]
    fn files_filled_under_other_rules_are_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join(sqlite::FILE);
        let fill = || std::fs::write(&database, "objects").unwrap();
        let survives = |ingest: &IngestOptions| {
            apply(&CacheOptions { ingest: ingest.clone(), ..CacheOptions::new(directory.path()) }).unwrap();
            database.exists()
        };
        let withheld = IngestOptions { withheld: vec!["configmaps:data".parse().unwrap()], ..IngestOptions::default() };
        fill();
        assert!(!survives(&IngestOptions::default()), "without recorded rules");
        fill();
        assert!(survives(&IngestOptions::default()));
        assert!(!survives(&withheld));
        fill();
        assert!(survives(&withheld));
        assert!(!survives(&IngestOptions { secret_values: true, ..withheld.clone() }));
        fill();
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        assert!(!survives(&withheld), "unreadable");
        fill();
        let before = json!({"rules": withheld, "printed": COLUMNS_VERSION}).to_string();
        std::fs::write(directory.path().join(FILE), before).unwrap();
        assert!(!survives(&withheld), "without a version of the rules for withheld values");
    }
}
