//! Which rules the stored objects were taken in under. Written when a cache is opened; read the next time.
//!
//! Where less may be kept than before, what is stored would still hold it, and members do not tell again what did not
//! change: the cache is filled anew (invariant I2: that loses nothing).

use crate::check::{Rebuild, discard};
use crate::ingest::Keep;
use crate::{Error, IndexOptions};
use std::io::ErrorKind;

const FILE: &str = "kept.json";

/// Throws the files of a cache away that was filled under other rules.
pub(crate) fn settle(options: &IndexOptions) -> Result<(), Error> {
    let path = options.data_dir.join(FILE);
    let fail = |source| Error::Io { path: path.display().to_string(), source };
    let decode = |source| Error::Decode { what: path.display().to_string(), source };
    let before = match std::fs::read(&path) {
        // Whatever cannot be read is not what is wanted now.
        Ok(text) => serde_json::from_slice::<Keep>(&text).ok(),
        // Files from before there were rules.
        Err(error) if error.kind() == ErrorKind::NotFound => Some(Keep::default()),
        Err(error) => return Err(fail(error)),
    };
    if before.as_ref() != Some(&options.keep) && discard(&options.data_dir, Rebuild::Everything)? {
        tracing::info!("the cache was filled under other rules of what is kept; it is filled anew");
    }
    std::fs::create_dir_all(&options.data_dir).map_err(fail)?;
    std::fs::write(&path, serde_json::to_vec(&options.keep).map_err(decode)?).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite;

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
        assert!(opened(&Keep::default()), "as before there were rules");
        assert!(opened(&Keep::default()));
        assert!(!opened(&withheld));
        filled();
        assert!(opened(&withheld));
        assert!(!opened(&Keep { secret_values: true, ..withheld.clone() }));
        filled();
        std::fs::write(home.path().join(FILE), "{").unwrap();
        assert!(!opened(&withheld), "cannot be read");
    }
}
