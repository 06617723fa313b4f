//! Records the rules under which the stored objects were ingested. Written when a cache is opened, compared at the
//! next start.
//!
//! If less may be kept than before, the stored objects still contain it; if more is printed from an object, the
//! stored columns lack it. Members do not send unchanged objects again, so the cache is deleted and filled again
//! (invariant I2).

use crate::check::{Rebuild, discard};
use crowsnest_store::ingest::Keep;
use crowsnest_store::{Error, IndexOptions};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;

const FILE: &str = "kept.json";
/// Version of the columns that [`crowsnest_apimachinery::printers`] prints.
const PRINTED: u32 = 4;
/// Version of the rules for values that are always withheld. A cache filled under earlier rules may contain copies
/// of them.
const WITHHELD: u32 = 2;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    rules: Keep,
    printed: u32,
    #[serde(default)]
    withheld: u32,
}

/// Deletes the files of a cache that was filled under other rules.
pub(crate) fn settle(options: &IndexOptions) -> Result<(), Error> {
    let path = options.data_dir.join(FILE);
    let fail = |source| Error::Io { path: path.display().to_string(), source };
    let decode = |source| Error::Decode { what: path.display().to_string(), source };
    let wanted = Kept { rules: options.keep.clone(), printed: PRINTED, withheld: WITHHELD };
    let before = match std::fs::read(&path) {
        // An unreadable file counts as other rules.
        Ok(text) => serde_json::from_slice::<Kept>(&text).ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(fail(error)),
    };
    if before.as_ref() != Some(&wanted) && discard(&options.data_dir, Rebuild::Everything)? {
        tracing::info!("the cache was filled under other rules; filling it again");
    }
    std::fs::create_dir_all(&options.data_dir).map_err(fail)?;
    std::fs::write(&path, serde_json::to_vec(&wanted).map_err(decode)?).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::sqlite;
    use serde_json::json;

    #[test]
    fn files_filled_under_other_rules_are_deleted() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join(sqlite::FILE);
        let filled = || std::fs::write(&database, "objects").unwrap();
        let opened = |keep: &Keep| {
            settle(&IndexOptions { keep: keep.clone(), ..IndexOptions::new(home.path()) }).unwrap();
            database.exists()
        };
        let withheld = Keep { withheld: vec!["configmaps:data".parse().unwrap()], ..Keep::default() };
        filled();
        assert!(!opened(&Keep::default()), "without recorded rules");
        filled();
        assert!(opened(&Keep::default()));
        assert!(!opened(&withheld));
        filled();
        assert!(opened(&withheld));
        assert!(!opened(&Keep { secret_values: true, ..withheld.clone() }));
        filled();
        std::fs::write(home.path().join(FILE), "{").unwrap();
        assert!(!opened(&withheld), "unreadable");
        filled();
        let before = json!({"rules": withheld, "printed": PRINTED}).to_string();
        std::fs::write(home.path().join(FILE), before).unwrap();
        assert!(!opened(&withheld), "from before copies of values were withheld");
    }
}
