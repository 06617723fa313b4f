//! Read functions shared by the backends: the ranges of a scan, bodies, sizes, counts and replays.
//!
//! The SQL is valid in both dialects: placeholders are `$n`.

use super::catalog::Catalog;
use super::decide::Target;
use super::rows::{Columns, decode_body, decode_record};
use super::{RecordFilter, ReplayedChange, Scan, ScanPage, StoreSize, StoredCollection, label_bits};
use crate::Error;
use crate::record::{CollectionKey, CollectionState, Object, Record, Seq};
use crate::stored_object::{StoredBody, StoredObject};
use bytes::Bytes;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::selector::{Operator, Requirement, Selector};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// Rows read by one call of [`super::Store::records`].
const SCAN_ROWS: i64 = 1000;
/// Maximum length of a [`LabelFilter::pattern`] in bytes. SQLite rejects patterns of more than 50,000 bytes.
const MAX_PATTERN_BYTES: usize = 4096;

/// Range of rows that one call of [`super::Store::records`] or [`super::Store::objects`] reads.
pub(super) struct ScanRange<'s> {
    scan: &'s Scan,
    /// Id of the collection.
    pub collection: i64,
    limit: usize,
    /// The namespace that is read, if the scan is limited to namespaces.
    current_namespace: Option<String>,
    /// Parameters 2, 3 and 4 of the query; 1 is the collection.
    pub namespace: String,
    pub name: String,
    pub rows: i64,
    /// Parameters of the condition for the labels, if there is one.
    pub labels: Option<LabelFilter>,
}

/// Condition that holds for all records that a label selector matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LabelFilter {
    /// Parameter 5: LIKE pattern for the labels.
    pub pattern: String,
    /// Parameter 6, for the backend that stores them: bits that are set in [`super::label_bits`].
    pub bits: i64,
}

impl<'s> ScanRange<'s> {
    /// None at the end of the scan, and if no record can match.
    pub fn new(scan: &'s Scan, collection: i64, limit: usize) -> Option<Self> {
        if scan.labels.as_ref().is_some_and(Selector::matches_nothing) {
            return None;
        }
        let (mut namespace, mut name) = scan.after.clone().unwrap_or_default();
        let current_namespace = match &scan.namespaces {
            None => None,
            Some(names) => Some(names.range(namespace.clone()..).next()?.clone()),
        };
        if let Some(next) = current_namespace.as_ref().filter(|next| **next != namespace) {
            (namespace, name) = (next.clone(), String::new());
        }
        // Without filters, one more row than the limit is sufficient.
        let rows = (limit as i64 + 1).clamp(2, SCAN_ROWS);
        let labels = scan.labels.as_ref().and_then(LabelFilter::new);
        Some(Self { scan, collection, limit, current_namespace, namespace, name, rows, labels })
    }

    /// The query for these columns; `label_condition` is the backend's condition for [`Self::labels`].
    pub fn sql(&self, columns: &str, label_condition: &str) -> String {
        let (after, order) = match self.current_namespace {
            None => ("(namespace, name) > ($2, $3)", "namespace, name"),
            Some(_) => ("namespace = $2 AND name > $3", "name"),
        };
        let labels = if self.labels.is_some() { label_condition } else { "" };
        format!("SELECT {columns} FROM records WHERE collection = $1 AND {after} {labels} ORDER BY {order} LIMIT $4")
    }

    /// The results of accepted records, and the position at which the scan stopped. `result` gets a record and its row.
    fn collect_page<R: Columns, T>(
        &self,
        target: &Target,
        rows: &[R],
        keep: &RecordFilter<'_>,
        result: impl Fn(Record, &R) -> Result<T, Error>,
    ) -> Result<ScanPage<T>, Error> {
        let is_full = rows.len() as i64 == self.rows;
        let (mut found, mut last_key) = (Vec::with_capacity(rows.len().min(self.limit)), None);
        let position = |(namespace, name): (Arc<str>, Arc<str>)| (namespace.to_string(), name.to_string());
        for row in rows {
            if found.len() == self.limit {
                return Ok((found, last_key.map(position)));
            }
            let record = decode_record(row, target)?;
            last_key = Some((Arc::clone(&record.key.namespace), Arc::clone(&record.key.name)));
            if keep(&record)? {
                found.push(result(record, row)?);
            }
        }
        if is_full {
            return Ok((found, last_key.map(position)));
        }
        let next_namespace = self.current_namespace.as_ref().and_then(|current| {
            let rest = self.scan.namespaces.as_ref()?;
            rest.range::<String, _>((Bound::Excluded(current), Bound::Unbounded)).next().cloned()
        });
        Ok((found, next_namespace.map(|namespace| (namespace, String::new()))))
    }
}

impl Scan {
    /// True if the database itself selects the records by their labels, so that nearly all rows that it returns match.
    pub fn is_prefiltered(&self) -> bool {
        let is_in_pattern = |requirement: &Requirement| {
            let mut values = requirement.values();
            match (requirement.operator(), values.next(), values.next()) {
                (Operator::Equals | Operator::DoubleEquals | Operator::In, Some(_), None) => true,
                (operator, ..) => operator == Operator::Exists,
            }
        };
        self.labels.as_ref().is_none_or(|selector| selector.requirements().iter().all(is_in_pattern))
    }
}

impl LabelFilter {
    /// None if the selector requires no label.
    fn new(selector: &Selector) -> Option<Self> {
        let required = required_labels(selector);
        let labels = required.iter().filter_map(|(key, value)| value.map(|value| (*key, value)));
        let bits = labels.fold(0, |bits, (key, value)| bits | label_bits::of_label(key, value));
        (!required.is_empty()).then(|| Self { pattern: label_pattern(&required), bits })
    }
}

/// The labels of all records that a selector matches: keys, with values that are required.
fn required_labels(selector: &Selector) -> BTreeMap<&str, Option<&str>> {
    let mut required: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for requirement in selector.requirements() {
        let mut values = requirement.values();
        match (requirement.operator(), values.next(), values.next()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, Some(value), None) => {
                required.insert(requirement.key(), Some(value));
            }
            (Operator::In | Operator::Exists, ..) => {
                required.entry(requirement.key()).or_default();
            }
            _ => {}
        }
    }
    required
}

/// LIKE pattern that matches the labels column of all records with these labels. The column is JSON in key order, as
/// [`super::rows::encode`] writes it. Labels that exceed the maximum length are omitted, so that more records match.
fn label_pattern(required: &BTreeMap<&str, Option<&str>>) -> String {
    let escaped = |text: &str| text.replace('!', "!!").replace('_', "!_").replace('%', "!%");
    let mut pattern = "%".to_owned();
    for (key, value) in required {
        let value = value.map(|value| format!("\"{}\"", escaped(value))).unwrap_or_default();
        let part = format!("\"{}\":{value}%", escaped(key));
        if pattern.len() + part.len() <= MAX_PATTERN_BYTES {
            pattern.push_str(&part);
        }
    }
    pattern
}

/// Bodies of records.
pub(super) struct Bodies {
    bodies: HashMap<u64, Bytes>,
    /// Ids of records that changed after they were read and before their bodies were. Record and body have to be read
    /// again together.
    pub changed: Vec<u64>,
}

impl Bodies {
    /// From rows (id, seq, dictionary, body).
    pub fn decode(catalog: &Catalog, records: &[Record], rows: &[impl Columns]) -> Result<Self, Error> {
        let fail = |e| Error::store("cannot read bodies", e);
        let seqs: HashMap<u64, Seq> = records.iter().map(|record| (record.id, record.seq)).collect();
        let mut found = Self { bodies: HashMap::with_capacity(rows.len()), changed: Vec::new() };
        for row in rows {
            let (id, seq) = (row.number(0).map_err(fail)? as u64, row.number(1).map_err(fail)? as u64);
            if seqs.get(&id).is_some_and(|expected| expected.0 != seq) {
                found.changed.push(id);
                continue;
            }
            let body = row.bytes(3).map_err(fail)?;
            found.bodies.insert(id, catalog.codec.unpack(body, row.number(2).map_err(fail)? as u32)?);
        }
        Ok(found)
    }

    /// Joins records with their bodies, in the order of the records. `fresh` are the objects that were read again
    /// because of `changed`. Deleted records are omitted.
    pub fn join(mut self, records: Vec<Record>, fresh: Vec<Object>) -> Vec<Object> {
        let mut fresh: HashMap<u64, Object> = fresh.into_iter().map(|object| (object.record.id, object)).collect();
        let object = |record: Record| match self.bodies.remove(&record.id) {
            Some(body) => Some(Object { record: Arc::new(record), body }),
            None => fresh.remove(&record.id),
        };
        records.into_iter().filter_map(object).collect()
    }
}

/// From a row (records, versions, deletions, bytes of versions, total bytes, free bytes).
pub(super) fn decode_size(row: &impl Columns) -> Result<StoreSize, Error> {
    let number = |at: usize| row.number(at).map(|n| n as u64).map_err(|e| Error::store("cannot determine its size", e));
    Ok(StoreSize {
        records: number(0)?,
        versions: number(1)?,
        deletions: number(2)?,
        version_bytes: number(3)?,
        bytes: number(4)?,
        free_bytes: number(5)?,
    })
}

/// Number of records per collection.
pub(super) const COUNTS: &str = "SELECT collection, count(*) FROM records GROUP BY collection";

/// Columns read by [`Catalog::add_collections`]. The reason why the collection is stale, or NULL, follows.
pub(super) const COLLECTION_COLUMNS: &str = "id, cluster, \"group\", version, resource, kind, namespaced, scope, \
    resource_version, complete, heard_at, gone";

impl Catalog {
    /// Adds the collections in rows of [`COLLECTION_COLUMNS`], and returns (dropped, collection) of each. Rows with an
    /// invalid cluster name are skipped.
    pub(super) fn add_collections(&self, rows: &[impl Columns]) -> Result<Vec<(bool, StoredCollection)>, sqlx::Error> {
        let mut added = Vec::with_capacity(rows.len());
        for row in rows {
            let Ok(cluster) = ClusterName::parse(row.text(1)?) else { continue };
            let key = CollectionKey::new(cluster, Gvr::new(row.text(2)?, row.text(3)?, row.text(4)?));
            let state = CollectionState {
                resource_version: row.text(8)?.to_owned(),
                complete: row.flag(9)?,
                kind: row.text(5)?.into(),
                namespaced: row.flag(6)?,
                last_contact_ms: row.number(10)?,
                stale_reason: row.optional_text(12)?.map(str::to_owned),
            };
            self.insert(row.number(0)?, &key, Arc::clone(&state.kind));
            added.push((row.flag(11)?, StoredCollection { key, state, scope: row.text(7)?.to_owned() }));
        }
        Ok(added)
    }

    /// The accepted records of a scan, from rows that begin with [`super::rows::COLUMNS`].
    pub(super) fn collect_records(
        &self,
        range: &ScanRange<'_>,
        rows: &[impl Columns],
        keep: &RecordFilter<'_>,
    ) -> Result<ScanPage<Record>, Error> {
        range.collect_page(&self.target_by_id(range.collection)?, rows, keep, |record, _| Ok(record))
    }

    /// The accepted objects of a scan, from rows that begin with [`super::rows::OBJECT_COLUMNS`].
    pub(super) fn collect_objects(
        &self,
        range: &ScanRange<'_>,
        rows: &[impl Columns],
        keep: &RecordFilter<'_>,
    ) -> Result<ScanPage<StoredObject>, Error> {
        range.collect_page(&self.target_by_id(range.collection)?, rows, keep, |record, row| {
            Ok(StoredObject { record: Arc::new(record), body: StoredBody::Compressed(decode_body(row)?) })
        })
    }

    /// From rows of [`COUNTS`].
    pub(super) fn counts(&self, rows: &[impl Columns]) -> Result<Vec<(CollectionKey, u64)>, Error> {
        let fail = |e| Error::store("cannot count its records", e);
        let mut counts = Vec::with_capacity(rows.len());
        for row in rows {
            let (id, count) = (row.number(0).map_err(fail)?, row.number(1).map_err(fail)?);
            counts.extend(self.collection_by_id(id).map(|(key, _)| (key, count as u64)));
        }
        Ok(counts)
    }

    /// Merges the two halves of a replay in order of seq: rows of records, and rows (id, seq) of deletions. Each half
    /// has up to `limit` rows, and both were read in one snapshot.
    pub(super) fn merge_replay(
        &self,
        records: &[impl Columns],
        deleted: &[impl Columns],
        limit: usize,
    ) -> Result<Vec<ReplayedChange>, Error> {
        let fail = |e| Error::store("cannot replay changes", e);
        // A half with `limit` rows may lack later changes, so the result ends where the first such half ends.
        fn end_of(rows: &[impl Columns], limit: usize) -> Result<u64, sqlx::Error> {
            match rows.last() {
                Some(row) if rows.len() == limit => row.number(1).map(|seq| seq as u64),
                _ => Ok(u64::MAX),
            }
        }
        let end = end_of(records, limit).map_err(fail)?.min(end_of(deleted, limit).map_err(fail)?);
        let mut replayed: BTreeMap<u64, ReplayedChange> = BTreeMap::new();
        for row in records {
            let object = self.decode_object(row)?;
            replayed.insert(object.record.seq.0, ReplayedChange::Put(object));
        }
        for row in deleted {
            let (id, seq) = (row.number(0).map_err(fail)? as u64, row.number(1).map_err(fail)? as u64);
            replayed.insert(seq, ReplayedChange::Deleted { id, seq: Seq(seq) });
        }
        Ok(replayed.into_iter().take_while(|(seq, _)| *seq <= end).map(|(_, change)| change).collect())
    }
}
