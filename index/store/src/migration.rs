//! Migrations between formats of the database: which step is next, and whether this version can use a newer format. The
//! backends execute and record the steps.
//!
//! A step that only adds (tables, columns with a default) does not change `shared_with`, so that the previous
//! version can use the same database during an upgrade and after a rollback. A step that removes or redefines
//! something sets `shared_with` to its own format in its `.up.sql`, and its `.down.sql` restores the previous
//! value. Statements of the store must not use `SELECT *`, or insert without column names.

use crate::Error;

/// Compatibility of the format of a database with this version.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FormatCompatibility {
    /// A format that this version knows and can migrate.
    Known,
    /// A newer format that this version can use without migrating it.
    NewerCompatible,
    /// A newer format that this version cannot use.
    NewerIncompatible,
}

/// Compares format `version` with `newest`, the newest format that this version knows. `shared_with` is the oldest
/// compatible format, if recorded.
pub(super) fn compatibility(version: usize, shared_with: Option<usize>, newest: usize) -> FormatCompatibility {
    match shared_with {
        _ if version <= newest => FormatCompatibility::Known,
        Some(oldest) if oldest <= newest => FormatCompatibility::NewerCompatible,
        _ => FormatCompatibility::NewerIncompatible,
    }
}

/// SQL of the step from the previous format, and of the step back to it.
pub(super) struct Migration {
    pub up: &'static str,
    pub down: &'static str,
}

/// Loads a [`Migration`] from `migrations/<store>/cache_<step>.up.sql` and `.down.sql` in the root of the repository.
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
pub(super) fn next_step(steps: &[Migration], version: usize, target: usize) -> Option<(&'static str, usize)> {
    match version.cmp(&target) {
        std::cmp::Ordering::Less => Some((steps[version].up, version + 1)),
        std::cmp::Ordering::Greater => Some((steps[version - 1].down, version - 1)),
        std::cmp::Ordering::Equal => None,
    }
}

/// Fails if format `version` is newer than `newest`, because this version has no steps from it to another format.
pub(super) fn check_migratable(database: &str, version: usize, newest: usize) -> Result<(), Error> {
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
    #[case::current(6, Some(6), FormatCompatibility::Known)]
    #[case::older(2, None, FormatCompatibility::Known)]
    #[case::newer_and_compatible(8, Some(6), FormatCompatibility::NewerCompatible)]
    #[case::newer_and_incompatible(8, Some(7), FormatCompatibility::NewerIncompatible)]
    #[case::newer_without_information(8, None, FormatCompatibility::NewerIncompatible)]
    fn newer_databases_are_used_if_compatible(
        #[case] version: usize,
        #[case] shared_with: Option<usize>,
        #[case] expected: FormatCompatibility,
    ) {
        assert_eq!(compatibility(version, shared_with, 6), expected);
    }
}
