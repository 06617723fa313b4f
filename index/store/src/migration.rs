//! Steps of a backend's format: which comes next, up or down, and whether a version may go on with a newer one. How a step is run and
//! remembered is the backend's.
//!
//! A step that only adds (tables, columns with a default) leaves `shared_with` alone, so that during an upgrade, and after the way back from
//! one, the version before goes on with the same database. A step that takes away or changes the meaning of what is there raises it, in
//! its `.up.sql`, to the format it leads to, and its `.down.sql` says what it was. No statement of the store may say `SELECT *`, or insert
//! without naming columns.

use crate::Error;

/// What is to be done about a database in some format.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Steps lead to what is wanted.
    Known,
    /// Newer, and made so that this version may use it as it is.
    Shared,
    /// Newer, and of no use to this version.
    TooNew,
}

/// Of format `version`, which is shared with formats from `shared_with` on, where it says so; this version knows `newest`.
pub(super) fn found(version: usize, shared_with: Option<usize>, newest: usize) -> Found {
    match shared_with {
        _ if version <= newest => Found::Known,
        Some(oldest) if oldest <= newest => Found::Shared,
        _ => Found::TooNew,
    }
}

/// One step of the format: to it and back.
pub(super) struct Migration {
    pub up: &'static str,
    pub down: &'static str,
}

/// The step with this name in the store's folder of `migrations/`. Paths are relative to this crate's folder.
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

/// What brings format `version` one step nearer to `target`, and the format it leads to. `None` when it is there.
pub(super) fn next(steps: &[Migration], version: usize, target: usize) -> Option<(&'static str, usize)> {
    match version.cmp(&target) {
        std::cmp::Ordering::Less => Some((steps[version].up, version + 1)),
        std::cmp::Ordering::Greater => Some((steps[version - 1].down, version - 1)),
        std::cmp::Ordering::Equal => None,
    }
}

/// Refuses to bring a newer format to another one, which the version that knows it has to do.
pub(super) fn reachable(database: &str, version: usize, newest: usize) -> Result<(), Error> {
    match version > newest {
        true => Err(Error::StoreFormat(format!(
            "{database} was written by a newer version (format {version}, this one knows {newest}), which alone can bring it to \
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
    #[case::as_this_version_writes_it(6, Some(6), Found::Known)]
    #[case::older(2, None, Found::Known)]
    #[case::newer_and_only_added_to(8, Some(6), Found::Shared)]
    #[case::newer_and_changed(8, Some(7), Found::TooNew)]
    #[case::newer_and_it_does_not_say(8, None, Found::TooNew)]
    fn who_may_go_on_with_a_newer_database(
        #[case] version: usize,
        #[case] shared_with: Option<usize>,
        #[case] expected: Found,
    ) {
        assert_eq!(found(version, shared_with, 6), expected);
    }
}
