//! Migrates a database file to a format, step by step, up or down.

use crate::Error;
use crate::migration::{FormatCompatibility, Migration, check_migratable, compatibility, migration, next_step};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection, Row};
use std::path::Path;

const MIGRATIONS: [Migration; 6] = [
    migration!("sqlite", "0001_objects"),
    migration!("sqlite", "0002_chosen_labels"),
    migration!("sqlite", "0003_versions"),
    migration!("sqlite", "0004_notes"),
    migration!("sqlite", "0005_shared_with"),
    migration!("sqlite", "0006_label_bits"),
];

/// The newest format that this version knows, which it writes.
pub const NEWEST: usize = MIGRATIONS.len();

/// Migrates the file to format `target`, up or down, with one transaction per step. A compatible newer format is
/// left unchanged; any other newer format is rejected.
pub(super) async fn migrate(connection: &mut SqliteConnection, path: &Path, target: usize) -> Result<(), Error> {
    let fail = |e| Error::store(format!("{} cannot be migrated", path.display()), e);
    let row = sqlx::query("PRAGMA user_version").fetch_one(&mut *connection).await.map_err(fail)?;
    let mut version = row.try_get::<i64, _>(0).map_err(fail)? as usize;
    if check_compatibility(connection, version, path).await? == FormatCompatibility::NewerCompatible {
        tracing::info!(version, known = NEWEST, "the cache file has a newer, compatible format and is used unchanged");
        return Ok(());
    }
    while let Some((step, reached)) = next_step(&MIGRATIONS, version, target) {
        version = reached;
        let mut transaction = connection.begin().await.map_err(fail)?;
        sqlx::raw_sql(step).execute(&mut *transaction).await.map_err(fail)?;
        let mark = AssertSqlSafe(format!("PRAGMA user_version = {version}"));
        sqlx::raw_sql(mark).execute(&mut *transaction).await.map_err(fail)?;
        transaction.commit().await.map_err(fail)?;
    }
    Ok(())
}

/// Migrates an existing file to format `to`. Returns the previous format; None if there is no file.
pub async fn migrate_file(data_dir: &Path, to: usize) -> Result<Option<usize>, Error> {
    let path = data_dir.join(super::FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let unusable = |e| Error::store(format!("{} cannot be opened", path.display()), e);
    let options = SqliteConnectOptions::new().filename(&path);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(unusable)?;
    let row = sqlx::query("PRAGMA user_version").fetch_one(&mut connection).await.map_err(unusable)?;
    let from = row.try_get::<i64, _>(0).map_err(unusable)? as usize;
    check_migratable(&path.display().to_string(), from, NEWEST)?;
    migrate(&mut connection, &path, to).await?;
    connection.close().await.map_err(unusable)?;
    Ok(Some(from))
}

/// Determines how this version of Crowsnest can use a file of format `version`; fails if it cannot.
pub(super) async fn check_compatibility(
    connection: &mut SqliteConnection,
    version: usize,
    path: &Path,
) -> Result<FormatCompatibility, Error> {
    let fail = |e| Error::store(format!("{} cannot be read", path.display()), e);
    let statement = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'format'";
    let shared_with = match sqlx::query(statement).fetch_optional(&mut *connection).await.map_err(fail)? {
        None => None,
        Some(_) => {
            let row = sqlx::query("SELECT shared_with FROM format").fetch_one(&mut *connection).await.map_err(fail)?;
            Some(row.try_get::<i64, _>(0).map_err(fail)? as usize)
        }
    };
    match compatibility(version, shared_with, NEWEST) {
        FormatCompatibility::NewerIncompatible => Err(Error::StoreFormat(format!(
            "{} was written by a newer version (format {version}, this one knows {NEWEST}): run `crowsnest cache migrate --to \
             {NEWEST}` of the newer version, or `crowsnest cache rebuild` of this one, which reads all objects from the members again",
            path.display()
        ))),
        compatibility => Ok(compatibility),
    }
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
    async fn every_step_can_be_reverted() {
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
