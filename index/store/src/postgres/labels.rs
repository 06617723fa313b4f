//! Index of objects by chosen labels, so that lookups need no scan.

use super::PostgresStore;
use super::write::lock;
use crate::Error;
use crate::labels::{ChosenLabels, Label, LabelChanges};
use crate::record::{CollectionKey, Record};
use crate::rows::COLUMNS;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

pub(super) async fn write(connection: &mut PgConnection, labels: &LabelChanges) -> Result<(), Error> {
    let delete = "DELETE FROM chosen_labels AS l USING unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]) \
        AS g (collection, key, value, record) WHERE l.collection = g.collection AND l.key = g.key \
        AND l.value = g.value AND l.record = g.record";
    let insert = "INSERT INTO chosen_labels (collection, key, value, record) SELECT * FROM unnest($1::bigint[], \
        $2::text[], $3::text[], $4::bigint[]) ON CONFLICT DO NOTHING";
    let column = |labels: &[Label], of: fn(&Label) -> i64| labels.iter().map(of).collect::<Vec<i64>>();
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
    /// Indexes objects by these labels: keys with an optional `*` at either end. Replicas may choose different
    /// labels, for example in different releases; each writes the union.
    pub async fn choose_labels(&mut self, labels: &[String]) -> Result<(), Error> {
        let chosen = ChosenLabels(labels.to_vec());
        let mut writer = self.writer.lock().await;
        let mut connection = self.reuse_or_connect(writer.take()).await?;
        prepare(&mut connection, &chosen).await?;
        *writer = Some(connection);
        drop(writer);
        self.chosen = chosen;
        Ok(())
    }

    /// In key order.
    pub(super) async fn records_labelled(
        &self,
        key: &CollectionKey,
        label: &str,
        value: Option<&str>,
    ) -> Result<Vec<Record>, Error> {
        self.chosen.require(label)?;
        let Some(id) = self.id_of(key).await? else { return Ok(Vec::new()) };
        let sql = format!(
            "SELECT {COLUMNS} FROM records WHERE id IN (SELECT record FROM chosen_labels WHERE collection = $1 AND \
             key = $2 AND ($3::text IS NULL OR value = $3)) ORDER BY namespace, name"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(id).bind(label).bind(value);
        let rows = self.rows_of("cannot look up a label", id, query).await?;
        rows.iter().map(|row| self.catalog.record_of(row, id)).collect()
    }
}

async fn stored_labels(connection: &mut PgConnection) -> Result<ChosenLabels, Error> {
    let known = sqlx::query_as("SELECT value FROM facts WHERE name = 'chosen_labels'").fetch_optional(connection).await;
    let known: Option<(String,)> = known.map_err(|e| Error::store("cannot read which labels are indexed", e))?;
    Ok(known.map(|(text,)| ChosenLabels::parse(&text)).unwrap_or_default())
}

/// Indexes labels that no replica has chosen yet. Takes the write lock so that no change is missed, but only if
/// labels are missing.
async fn prepare(connection: &mut PgConnection, chosen: &ChosenLabels) -> Result<(), Error> {
    let fail = |e| Error::store("cannot index labels", e);
    let lacks = |known: &ChosenLabels| chosen.0.iter().any(|pattern| !known.0.contains(pattern));
    if !lacks(&stored_labels(connection).await?) {
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
    for pattern in &chosen.0 {
        if all.0.contains(pattern) {
            continue;
        }
        all.0.push(pattern.clone());
        let like = pattern.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_").replace('*', "%");
        sqlx::query(fill).bind(like).execute(&mut *transaction).await.map_err(fail)?;
    }
    let note =
        "INSERT INTO facts (name, value) VALUES ('chosen_labels', $1) ON CONFLICT (name) DO UPDATE SET value = $1";
    sqlx::query(note).bind(all.text()).execute(&mut *transaction).await.map_err(fail)?;
    transaction.commit().await.map_err(fail)
}
