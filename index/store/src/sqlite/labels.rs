//! Index of objects by configured labels, so that lookups need no scan.

use super::SqliteStore;
use super::write::json;
use crate::labels::{IndexedLabels, Label, LabelChanges};
use crate::record::Record;
use crate::rows::COLUMNS;
use crate::{Error, LabelQuery};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection};

/// Writes changes of the index. Additions are batched. Removals are executed one by one, because SQLite would execute a
/// batch by scanning all labels of a collection.
pub(super) async fn write(connection: &mut SqliteConnection, labels: LabelChanges) -> Result<(), Error> {
    let fail = |e| Error::store("cannot write labels", e);
    for Label { collection, key, value, record } in labels.removed {
        sqlx::query("DELETE FROM chosen_labels WHERE collection = ? AND key = ? AND value = ? AND record = ?")
            .bind(collection)
            .bind(key)
            .bind(value)
            .bind(record)
            .execute(&mut *connection)
            .await
            .map_err(fail)?;
    }
    if labels.added.is_empty() {
        return Ok(());
    }
    let added: Vec<_> = labels.added.iter().map(|l| (l.collection, &l.key, &l.value, l.record)).collect();
    let insert = "INSERT OR IGNORE INTO chosen_labels (collection, key, value, record) \
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?)";
    let added = json(&added, "list of labels")?;
    sqlx::query(insert).bind(added).execute(connection).await.map(drop).map_err(fail)
}

/// Rebuilds the index if the configured labels differ from those it was built with.
pub(super) async fn rebuild_if_changed(connection: &mut SqliteConnection, labels: &IndexedLabels) -> Result<(), Error> {
    let fail = |e| Error::store("cannot index labels", e);
    let stored: Option<(String,)> = sqlx::query_as("SELECT value FROM facts WHERE name = 'chosen_labels'")
        .fetch_optional(&mut *connection)
        .await
        .map_err(fail)?;
    if stored.is_some_and(|(stored,)| stored == labels.encode()) {
        return Ok(());
    }
    let mut transaction = connection.begin().await.map_err(fail)?;
    sqlx::query("DELETE FROM chosen_labels").execute(&mut *transaction).await.map_err(fail)?;
    let fill = "INSERT OR IGNORE INTO chosen_labels (collection, key, value, record) \
        SELECT r.collection, l.key, l.value, r.id FROM records AS r, json_each(r.labels) AS l WHERE l.key GLOB ?";
    for pattern in &labels.0 {
        sqlx::query(fill).bind(pattern.as_str()).execute(&mut *transaction).await.map_err(fail)?;
    }
    sqlx::query("INSERT OR REPLACE INTO facts (name, value) VALUES ('chosen_labels', ?)")
        .bind(labels.encode())
        .execute(&mut *transaction)
        .await
        .map_err(fail)?;
    transaction.commit().await.map_err(fail)
}

impl SqliteStore {
    /// Records with a label, in key order. Fails if the label is not indexed.
    pub(super) async fn records_by_label(&self, query: &LabelQuery<'_>) -> Result<Vec<Record>, Error> {
        let LabelQuery { collection, label, value } = *query;
        self.indexed_labels.require(label)?;
        let Some(id) = self.catalog.id_of(collection) else { return Ok(Vec::new()) };
        let only = if value.is_some() { "AND value = ?3" } else { "" };
        let sql = format!(
            "SELECT {COLUMNS} FROM records WHERE id IN (SELECT record FROM chosen_labels WHERE collection = ?1 AND \
             key = ?2 {only}) ORDER BY namespace, name"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(id).bind(label);
        let query = match value {
            Some(value) => query.bind(value),
            None => query,
        };
        let rows = query.fetch_all(&self.readers).await.map_err(|e| Error::store("cannot look up a label", e))?;
        rows.iter().map(|row| self.catalog.decode_record(row, id)).collect()
    }
}
