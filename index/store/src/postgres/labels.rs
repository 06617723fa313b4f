//! Index of objects by configured labels, so that lookups need no scan.

use super::PostgresStore;
use super::write::lock;
use crate::labels::{IndexedLabels, Label, LabelChanges};
use crate::record::Record;
use crate::rows::COLUMNS;
use crate::{Error, LabelQuery};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

pub(super) async fn write(connection: &mut PgConnection, labels: &LabelChanges) -> Result<(), Error> {
    let delete = "DELETE FROM chosen_labels AS l USING unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]) \
        AS g (collection, key, value, record) WHERE l.collection = g.collection AND l.key = g.key \
        AND l.value = g.value AND l.record = g.record";
    let insert = "INSERT INTO chosen_labels (collection, key, value, record) SELECT * FROM unnest($1::bigint[], \
        $2::text[], $3::text[], $4::bigint[]) ON CONFLICT DO NOTHING";
    let column = |labels: &[Label], number_of: fn(&Label) -> i64| labels.iter().map(number_of).collect::<Vec<i64>>();
    for (sql, labels) in [(delete, &labels.removed), (insert, &labels.added)] {
        if labels.is_empty() {
            continue;
        }
        sqlx::query(sql)
            .bind(column(labels, |label| label.collection))
            .bind(labels.iter().map(|label| label.key.as_str()).collect::<Vec<_>>())
            .bind(labels.iter().map(|label| label.value.as_str()).collect::<Vec<_>>())
            .bind(column(labels, |label| label.record))
            .execute(&mut *connection)
            .await
            .map_err(|e| Error::store("cannot write labels", e))?;
    }
    Ok(())
}

impl PostgresStore {
    /// Indexes objects by these labels: keys with an optional `*` at either end. Replicas may require different labels,
    /// for example because they run different releases, so each replica maintains the index for the labels of all
    /// replicas.
    pub async fn index_labels(&mut self, labels: &[String]) -> Result<(), Error> {
        let indexed_labels = IndexedLabels(labels.to_vec());
        let mut writer = self.writer.lock().await;
        let mut connection = self.reuse_or_connect(writer.take()).await?;
        index_missing(&mut connection, &indexed_labels).await?;
        *writer = Some(connection);
        drop(writer);
        self.indexed_labels = indexed_labels;
        Ok(())
    }

    /// Records with a label, in key order. Fails if the label is not indexed.
    pub(super) async fn records_by_label(&self, query: &LabelQuery<'_>) -> Result<Vec<Record>, Error> {
        let LabelQuery { collection, label, value } = *query;
        self.indexed_labels.require(label)?;
        let Some(id) = self.id_of(collection).await? else { return Ok(Vec::new()) };
        let sql = format!(
            "SELECT {COLUMNS} FROM records WHERE id IN (SELECT record FROM chosen_labels WHERE collection = $1 AND \
             key = $2 AND ($3::text IS NULL OR value = $3)) ORDER BY namespace, name"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(id).bind(label).bind(value);
        let rows = self.fetch_collection_rows("cannot look up a label", id, query).await?;
        rows.iter().map(|row| self.catalog.decode_record(row, id)).collect()
    }
}

async fn stored_labels(connection: &mut PgConnection) -> Result<IndexedLabels, Error> {
    let stored =
        sqlx::query_as("SELECT value FROM facts WHERE name = 'chosen_labels'").fetch_optional(connection).await;
    let stored: Option<(String,)> = stored.map_err(|e| Error::store("cannot read which labels are indexed", e))?;
    Ok(stored.map(|(text,)| IndexedLabels::parse(&text)).unwrap_or_default())
}

/// Indexes the labels that no replica has indexed yet. If there are any, takes the write lock, so that no change is
/// missed.
async fn index_missing(connection: &mut PgConnection, labels: &IndexedLabels) -> Result<(), Error> {
    let fail = |e| Error::store("cannot index labels", e);
    let stored = stored_labels(connection).await?;
    if labels.0.iter().all(|pattern| stored.0.contains(pattern)) {
        return Ok(());
    }
    let mut transaction = connection.begin().await.map_err(fail)?;
    // All records are read once, so the usual statement timeout does not apply.
    sqlx::raw_sql("SET LOCAL statement_timeout = 0").execute(&mut *transaction).await.map_err(fail)?;
    lock(&mut transaction).await?;
    let mut all = stored_labels(&mut transaction).await?;
    let fill = "INSERT INTO chosen_labels (collection, key, value, record) \
        SELECT r.collection, l.key, l.value, r.id FROM records AS r, json_each_text(r.labels::json) AS l \
        WHERE l.key LIKE $1 ON CONFLICT DO NOTHING";
    for pattern in &labels.0 {
        if all.0.contains(pattern) {
            continue;
        }
        all.0.push(pattern.clone());
        let like = pattern.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_").replace('*', "%");
        sqlx::query(fill).bind(like).execute(&mut *transaction).await.map_err(fail)?;
    }
    let save =
        "INSERT INTO facts (name, value) VALUES ('chosen_labels', $1) ON CONFLICT (name) DO UPDATE SET value = $1";
    sqlx::query(save).bind(all.encode()).execute(&mut *transaction).await.map_err(fail)?;
    transaction.commit().await.map_err(fail)
}
