//! Bringing a database file to this version's format, step by step, up or down.

use crate::Error;
use crate::store::migration::{Migration, next};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use std::path::Path;

const MIGRATIONS: [Migration; 4] = [
    Migration {
        up: include_str!("../../../../migrations/sqlite/cache_0001_objects.up.sql"),
        down: include_str!("../../../../migrations/sqlite/cache_0001_objects.down.sql"),
    },
    Migration {
        up: include_str!("../../../../migrations/sqlite/cache_0002_chosen_labels.up.sql"),
        down: include_str!("../../../../migrations/sqlite/cache_0002_chosen_labels.down.sql"),
    },
    Migration {
        up: include_str!("../../../../migrations/sqlite/cache_0003_versions.up.sql"),
        down: include_str!("../../../../migrations/sqlite/cache_0003_versions.down.sql"),
    },
    Migration {
        up: include_str!("../../../../migrations/sqlite/cache_0004_notes.up.sql"),
        down: include_str!("../../../../migrations/sqlite/cache_0004_notes.down.sql"),
    },
];

/// The format this version writes.
pub(super) const NEWEST: usize = MIGRATIONS.len();

/// Brings the file to format `target`, up or down, one transaction a step. A newer file is refused.
pub(super) async fn migrate(connection: &mut SqliteConnection, path: &Path, target: usize) -> Result<(), Error> {
    let fail = |e| Error::store(format!("{} cannot be brought up to date", path.display()), e);
    let row = sqlx::query("PRAGMA user_version").fetch_one(&mut *connection).await.map_err(fail)?;
    let mut version = row.try_get::<i64, _>(0).map_err(fail)? as usize;
    if version > MIGRATIONS.len() {
        return Err(Error::StoreFormat(format!(
            "{} was written by a newer version (format {version}, this one knows {}): delete it to refill the cache, or \
             run the newer version",
            path.display(),
            MIGRATIONS.len()
        )));
    }
    while let Some((step, reached)) = next(&MIGRATIONS, version, target) {
        version = reached;
        let mut transaction = connection.begin().await.map_err(fail)?;
        sqlx::raw_sql(step).execute(&mut *transaction).await.map_err(fail)?;
        let mark = AssertSqlSafe(format!("PRAGMA user_version = {version}"));
        sqlx::raw_sql(mark).execute(&mut *transaction).await.map_err(fail)?;
        transaction.commit().await.map_err(fail)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tables(connection: &mut SqliteConnection) -> Vec<String> {
        let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let rows: Vec<(String,)> = sqlx::query_as(sql).fetch_all(connection).await.unwrap();
        rows.into_iter().map(|(name,)| name).collect()
    }

    #[tokio::test]
    async fn every_step_goes_up_and_down() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let mut before = Vec::new();
        for target in 0..=NEWEST {
            migrate(&mut connection, Path::new("memory"), target).await.unwrap();
            before.push(tables(&mut connection).await);
        }
        for target in (0..=NEWEST).rev() {
            migrate(&mut connection, Path::new("memory"), target).await.unwrap();
            assert_eq!(tables(&mut connection).await, before[target], "format {target}");
        }
    }
}
