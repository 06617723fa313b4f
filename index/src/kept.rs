//! Which rules the stored objects were taken in under, and what is read from them. Written when a cache is opened; read
//! the next time.
//!
//! Where less may be kept than before, what is stored would still hold it; where more is read from an object, what is stored
//! lacks it; and members do not tell again what did not change: the cache is filled anew (invariant I2: that loses
//! nothing).

use crate::check::{Rebuild, discard};
use crowsnest_store::ingest::Keep;
use crowsnest_store::{Error, IndexOptions};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;

const FILE: &str = "kept.json";
/// Version of what [`crowsnest_apimachinery::printers`] reads from objects.
const PRINTED: u32 = 4;
/// Version of the rules for values that are always withheld: a cache filled under earlier rules may contain copies of
/// them.
const WITHHELD: u32 = 2;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    rules: Keep,
    printed: u32,
    #[serde(default)]
    withheld: u32,
}

/// Throws the files of a cache away that was filled under other rules.
pub(crate) fn settle(options: &IndexOptions) -> Result<(), Error> {
    let path = options.data_dir.join(FILE);
    let fail = |source| Error::Io { path: path.display().to_string(), source };
    let decode = |source| Error::Decode { what: path.display().to_string(), source };
    let wanted = Kept { rules: options.keep.clone(), printed: PRINTED, withheld: WITHHELD };
    let before = match std::fs::read(&path) {
        // Whatever cannot be read is not what is wanted now.
        Ok(text) => serde_json::from_slice::<Kept>(&text).ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(fail(error)),
    };
    if before.as_ref() != Some(&wanted) && discard(&options.data_dir, Rebuild::Everything)? {
        tracing::info!("the cache was filled under other rules; it is filled anew");
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
    fn files_filled_under_other_rules_go() {
        let home = tempfile::tempdir().unwrap();
        let database = home.path().join(sqlite::FILE);
        let filled = || std::fs::write(&database, "objects").unwrap();
        let opened = |keep: &Keep| {
            settle(&IndexOptions { keep: keep.clone(), ..IndexOptions::new(home.path()) }).unwrap();
            database.exists()
        };
        let withheld = Keep { withheld: vec!["configmaps:data".parse().unwrap()], ..Keep::default() };
        filled();
        assert!(!opened(&Keep::default()), "from before there were rules");
        filled();
        assert!(opened(&Keep::default()));
        assert!(!opened(&withheld));
        filled();
        assert!(opened(&withheld));
        assert!(!opened(&Keep { secret_values: true, ..withheld.clone() }));
        filled();
        std::fs::write(home.path().join(FILE), "{").unwrap();
        assert!(!opened(&withheld), "cannot be read");
        filled();
        let before = json!({"rules": withheld, "printed": PRINTED}).to_string();
        std::fs::write(home.path().join(FILE), before).unwrap();
        assert!(!opened(&withheld), "from before copies of values were withheld");
    }
}
