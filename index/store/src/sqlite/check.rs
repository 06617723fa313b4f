//! Integrity check of the database file and of every row.

use super::{FILE, SqliteStore, migrations, new_get_batcher};
use crate::catalog::Catalog;
use crate::check_report::CheckReport;
use crate::codec::Codec;
use crate::labels::IndexedLabels;
use crate::rows::{Columns, OBJECT_COLUMNS};
use crate::{Error, Seq, label_bits};
use serde::Deserialize;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePoolOptions, SqliteRow};
use sqlx::{AssertSqlSafe, Connection, Row as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::Mutex;

/// Rows per query.
const ROWS: i64 = 500;

/// Number of keys with several records. No index enforces that keys are unique.
const REPEATED_KEYS: &str = "SELECT count(*) FROM (SELECT 1 FROM records GROUP BY collection, namespace, name \
    HAVING count(*) > 1)";

/// Fields of a body that must equal its row.
#[derive(Deserialize)]
struct Body {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
}

impl SqliteStore {
    /// Opens an existing database for reading; another process may write to it meanwhile. Fails if its format is older
    /// than this version's, or newer and incompatible.
    pub async fn open_read_only(data_dir: &Path, codec: Arc<Codec>) -> Result<Self, Error> {
        let path = data_dir.join(FILE);
        let unusable = |e| Error::store(format!("{} cannot be opened", path.display()), e);
        let options = SqliteConnectOptions::new().filename(&path).read_only(true);
        let mut connection = SqliteConnection::connect_with(&options).await.map_err(unusable)?;
        let row = sqlx::query("PRAGMA user_version").fetch_one(&mut connection).await.map_err(unusable)?;
        let format = row.try_get::<i64, _>(0).map_err(unusable)? as usize;
        if format < migrations::NEWEST {
            return Err(Error::StoreFormat(format!(
                "{} has format {format}, this version reads {}; start this version once to migrate it",
                path.display(),
                migrations::NEWEST
            )));
        }
        migrations::check_compatibility(&mut connection, format, &path).await?;
        let readers = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.map_err(unusable)?;
        let writer = Mutex::new(super::Writer { connection, latest: 0 });
        let catalog = Catalog::new(codec);
        let (assigned, gets, indexed_labels) = (AtomicU64::default(), new_get_batcher(), IndexedLabels::default());
        let store = Self { writer, assigned, readers, gets, catalog, indexed_labels };
        store.load().await?;
        Ok(store)
    }

    /// The newest seq at present, including those assigned by another process; `latest` returns the newest seq at
    /// opening.
    pub async fn newest_seq(&self) -> Result<Seq, Error> {
        super::load::newest_seq(&self.readers).await
    }

    /// The identity that the database already has; empty if it has none. Unlike [`crate::Store::identity`], this does
    /// not write.
    pub async fn stored_identity(&self) -> Result<String, Error> {
        let fail = |e| Error::store("cannot read its identity", e);
        let sql = "SELECT value FROM facts WHERE name = 'identity'";
        let row = sqlx::query(sql).fetch_optional(&self.readers).await.map_err(fail)?;
        row.map_or(Ok(String::new()), |row| row.try_get(0)).map_err(fail)
    }

    /// Adds the problems of the file's pages, and those of every record and old version, to the report.
    pub async fn check(&self, report: &mut CheckReport) -> Result<(), Error> {
        match sqlx::query("PRAGMA integrity_check(20)").fetch_all(&self.readers).await {
            Ok(rows) => {
                let found = rows.iter().filter_map(|row| row.try_get::<String, _>(0).ok());
                found.filter(|text| text != "ok").for_each(|text| report.add_problem(format!("database: {text}")));
            }
            Err(error) => report.add_problem(Error::store("cannot be read", error).chain()),
        }
        // Damaged pages cannot be read row by row.
        if !report.is_sound() {
            return Ok(());
        }
        let repeated = sqlx::query(REPEATED_KEYS).fetch_one(&self.readers).await.and_then(|row| row.try_get(0));
        let repeated: i64 = repeated.map_err(|e| Error::store("cannot be read", e))?;
        if repeated > 0 {
            report.add_problem(format!("database: keys with several records: {repeated}"));
        }
        report.records = self.check_rows("records", "id", "label_bits", report).await?;
        report.versions = self.check_rows("versions", "ended", "-1", report).await?;
        Ok(())
    }

    /// Checks all rows of a table in key order; returns their number. `bits` is the SQL for their label bits.
    async fn check_rows(&self, table: &str, key: &str, bits: &str, report: &mut CheckReport) -> Result<u64, Error> {
        let fail = |e| Error::store("cannot be read", e);
        let sql =
            format!("SELECT {OBJECT_COLUMNS}, {key}, {bits} FROM {table} WHERE {key} > $1 ORDER BY {key} LIMIT $2");
        let (mut after, mut count) = (0_i64, 0);
        loop {
            let rows = sqlx::query(AssertSqlSafe(sql.clone())).bind(after).bind(ROWS);
            let rows = rows.fetch_all(&self.readers).await.map_err(fail)?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = last.number(15).map_err(fail)?;
            count += rows.len() as u64;
            for row in &rows {
                if let Err(problem) = self.check_row(row) {
                    let key = row.number(15).map_err(fail)?;
                    report.add_problem(format!("{table} {key}: {problem}"));
                }
            }
        }
    }

    fn check_row(&self, row: &SqliteRow) -> Result<(), String> {
        let object = self.catalog.decode_object(row).map_err(|error| error.chain())?;
        let bits = label_bits::of_labels(&object.record.labels);
        if row.number(16).map_err(|error| error.to_string())? & bits != bits {
            return Err("its label bits do not contain all of its labels".to_owned());
        }
        let body: Body = serde_json::from_slice(&object.body).map_err(|error| format!("its body: {error}"))?;
        let (body_metadata, record) = (body.metadata, &object.record);
        let is_equal = *body_metadata.name == *record.key.name
            && body_metadata.uid == record.uid
            && body_metadata.resource_version == record.resource_version;
        if is_equal {
            Ok(())
        } else {
            Err(format!("its body belongs to {} {}", body_metadata.name, body_metadata.resource_version))
        }
    }
}
