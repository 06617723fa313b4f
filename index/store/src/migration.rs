//! Steps between formats of a backend: the next step up or down, and whether this version may use a newer format.
//! Executing and recording a step is up to the backend.
//!
//! A step that only adds (tables, columns with a default) does not change `shared_with`, so that the previous
//! version can use the same database during an upgrade and after a rollback. A step that removes or redefines
//! something sets `shared_with` to its own format in its `.up.sql`, and its `.down.sql` restores the previous
//! value. Statements of the store must not use `SELECT *`, or insert without column names.

use crate::Error;

/// Decision about a database of a given format.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Steps lead to the target format.
    Known,
    /// A newer format that this version can use unchanged.
    Shared,
    /// A newer format that this version cannot use.
    TooNew,
}

/// Compares format `version` with `newest`, the newest format that this version knows. `shared_with` is the oldest
/// compatible format, if recorded.
pub(super) fn found(version: usize, shared_with: Option<usize>, newest: usize) -> Found {
    match shared_with {
        _ if version <= newest => Found::Known,
        Some(oldest) if oldest <= newest => Found::Shared,
        _ => Found::TooNew,
    }
}

/// A step to a format and back.
pub(super) struct Migration {
    pub up: &'static str,
    pub down: &'static str,
}

/// The step of this name in the store's folder of `migrations/`. Paths are relative to this crate.
macro_rules! migration {
    ($store:literal, $step:literal) => {
        Migration {
            up: include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../migrations/",
                $store,
                "/cache_",
                $step,
                ".up.sql"
            )),
            down: include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../migrations/",
                $store,
                "/cache_",
                $step,
                ".down.sql"
            )),
        }
    };
}
pub(super) use migration;

/// The SQL of the next step from format `version` towards `target`, and the format it leads to. `None` at the
/// target.
pub(super) fn next(steps: &[Migration], version: usize, target: usize) -> Option<(&'static str, usize)> {
    match version.cmp(&target) {
        std::cmp::Ordering::Less => Some((steps[version].up, version + 1)),
        std::cmp::Ordering::Greater => Some((steps[version - 1].down, version - 1)),
        std::cmp::Ordering::Equal => None,
    }
}

/// Rejects migrating a newer format; only the version that knows it can.
pub(super) fn reachable(database: &str, version: usize, newest: usize) -> Result<(), Error> {
    match version > newest {
        true => Err(Error::StoreFormat(format!(
            "{database} was written by a newer version (format {version}, this one knows {newest}); only that version can migrate it to \
             another format"
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::current(6, Some(6), Found::Known)]
    #[case::older(2, None, Found::Known)]
    #[case::newer_and_compatible(8, Some(6), Found::Shared)]
    #[case::newer_and_incompatible(8, Some(7), Found::TooNew)]
    #[case::newer_without_information(8, None, Found::TooNew)]
    fn newer_databases_are_used_if_compatible(
        #[case] version: usize,
        #[case] shared_with: Option<usize>,
        #[case] expected: Found,
    ) {
        assert_eq!(found(version, shared_with, 6), expected);
    }
}
