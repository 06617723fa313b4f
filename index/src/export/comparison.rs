//! Compares an index with the store and applies the differences.
//!
//! Documents are read page by page. The uids of selected objects are kept in memory, up to a limit; with more
//! objects, the index is read several times, each time for another part of the uids.

use super::compare::{Verdict, decide};
use super::error::ExportError;
use super::exporter::{Exporter, Session};
use super::indices;
use super::progress::ExportState;
use super::scan::{FoundDocument, Scan};
use super::selection::Membership;
use super::source::ObjectChange;
use super::version::DocumentVersion;
use crowsnest_search::opensearch::bulk::DocumentChange;
use crowsnest_store::CollectionKey;
use crowsnest_store::{BodyMode, Scan as StoreScan};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Records read from the store at once.
const RECORDS_PER_READ: usize = 1000;
/// Objects written at once.
const OBJECTS_PER_WRITE: usize = 200;

/// An object that should be in the index.
struct SelectedObject {
    seq: u64,
    id: u64,
}

/// Selected objects of one part, by the digest of their uid.
type SelectedPart = HashMap<u128, SelectedObject>;

/// One of several parts of all uids.
#[derive(Clone, Copy)]
struct Part {
    number: u128,
    count: u128,
}

impl Part {
    /// The digest of a uid; None if the uid belongs to another part.
    fn digest(self, uid: &str) -> Option<u128> {
        let digest = xxh3_128(uid.as_bytes());
        (digest % self.count == self.number).then_some(digest)
    }
}

impl Exporter {
    /// Brings an index to the state of the store at the start of this call or later. Returns the uuid of the index.
    pub(super) async fn compare(
        &self,
        session: &mut Session,
        index: &str,
        failures: &mut u32,
    ) -> Result<String, ExportError> {
        self.update_progress(|progress| progress.state = ExportState::Comparing { index: index.to_owned() });
        let uuid = indices::ensure(&self.client, index).await?;
        indices::refresh(&self.client, index).await?;
        // Deletions get the newest change as version, so that later writes supersede them.
        let latest = self.source.latest();
        let is_complete = |key: &CollectionKey| self.states.get(key).is_some_and(|state| state.complete);
        let incomplete = session.selection.collections_in(index).map(|(key, _)| key).filter(|key| !is_complete(key));
        let incomplete: Vec<CollectionKey> = incomplete.cloned().collect();
        let clusters = session.selection.membership_by_cluster(index, is_complete);
        session.incomplete.extend(incomplete);
        let parts = self.count_parts(session, index).await?;
        for number in 0..parts {
            let part = Part { number, count: parts };
            let mut selected = self.read_selected_objects(session, index, part).await?;
            let comparison = IndexComparison { session, index, part, clusters: &clusters, latest };
            self.delete_unselected(&comparison, &mut selected, failures).await?;
            self.write_selected(&comparison, selected, failures).await?;
        }
        *failures = 0;
        self.update_progress(|progress| progress.comparisons += 1);
        Ok(uuid)
    }

    /// Number of parts, so that each contains a bounded number of uids.
    async fn count_parts(&self, session: &Session, index: &str) -> Result<u128, ExportError> {
        let counts: BTreeMap<CollectionKey, u64> = self.source.store.counts().await?.into_iter().collect();
        let records: u64 = session.selection.collections_in(index).filter_map(|(key, _)| counts.get(key)).sum();
        Ok(u128::from(records.div_ceil(self.options.max_compared_uids.max(1) as u64).max(1)))
    }

    async fn read_selected_objects(
        &self,
        session: &Session,
        index: &str,
        part: Part,
    ) -> Result<SelectedPart, ExportError> {
        let mut selected = SelectedPart::new();
        for (key, namespaces) in session.selection.collections_in(index) {
            let mut scan =
                StoreScan { collection: key.clone(), namespaces: namespaces.cloned(), after: None, labels: None };
            loop {
                let (records, next) = self.source.store.records(&scan, &|_| Ok(true), RECORDS_PER_READ).await?;
                for record in records {
                    let Some(digest) = part.digest(&record.uid).filter(|_| !record.uid.is_empty()) else { continue };
                    let found = SelectedObject { seq: record.seq.0, id: record.id };
                    // Two groups may serve the same object; the newest change is written.
                    let newest = selected.entry(digest).or_insert(SelectedObject { ..found });
                    if newest.seq < found.seq {
                        *newest = found;
                    }
                }
                match next {
                    None => break,
                    next => scan.after = next,
                }
            }
        }
        Ok(selected)
    }

    /// Deletes documents that do not belong in the index. Removes current documents from `selected`.
    async fn delete_unselected(
        &self,
        comparison: &IndexComparison<'_>,
        selected: &mut SelectedPart,
        failures: &mut u32,
    ) -> Result<(), ExportError> {
        let mut scan = Scan::new(&self.client, comparison.index, self.options.page_size);
        let result = loop {
            let page = match scan.next().await {
                Ok(page) if page.is_empty() => break Ok(()),
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            let unselected = match comparison.find_unselected(page, selected) {
                Ok(unselected) => unselected,
                Err(error) => break Err(error),
            };
            if !unselected.is_empty()
                && let Err(error) = self.send(comparison.index, unselected, failures).await
            {
                break Err(error);
            }
        };
        scan.close().await;
        result
    }

    async fn write_selected(
        &self,
        comparison: &IndexComparison<'_>,
        selected: SelectedPart,
        failures: &mut u32,
    ) -> Result<(), ExportError> {
        let mut ids: Vec<u64> = selected.into_values().map(|selected| selected.id).collect();
        ids.sort_unstable();
        for ids in ids.chunks(OBJECTS_PER_WRITE) {
            // Objects deleted in the meantime are omitted; their deletion follows.
            let objects = self.source.store.by_ids(ids, BodyMode::Read).await?;
            let changes = objects.into_iter().map(|object| {
                let record = &object.record;
                let (seq, key, uid) = (record.seq.0, record.key.clone(), record.uid.clone());
                let kind = Arc::clone(&record.kind);
                (comparison.index.to_owned(), ObjectChange { seq, key, kind, uid, object: Some(object) })
            });
            for (index, changes) in self.create_documents(changes.collect(), comparison.session.epochs.last).await? {
                self.send(&index, changes, failures).await?;
            }
        }
        Ok(())
    }
}

/// A part of an index that is compared.
struct IndexComparison<'c> {
    session: &'c Session,
    index: &'c str,
    part: Part,
    /// Relation of each cluster to the index.
    clusters: &'c BTreeMap<String, Membership>,
    latest: u64,
}

impl IndexComparison<'_> {
    /// Deletions of documents that do not belong in the index.
    fn find_unselected(
        &self,
        page: Vec<FoundDocument>,
        selected: &mut SelectedPart,
    ) -> Result<Vec<DocumentChange>, ExportError> {
        let mut unselected = Vec::new();
        for found in page {
            let Some(digest) = self.part.digest(&found.id) else { continue };
            let membership = self.clusters.get(&found.cluster).copied().unwrap_or(Membership::NotSelected);
            let seq = selected.get(&digest).map(|selected| selected.seq);
            match decide(found.version, seq, membership, self.session.epochs) {
                Verdict::Current => drop(selected.remove(&digest)),
                Verdict::Unselected => unselected.push(DocumentChange {
                    seq: DocumentVersion::new(self.session.epochs.last, self.latest).number(),
                    id: found.id,
                    document: None,
                }),
                Verdict::Ahead { epoch } => return Err(ExportError::Ahead { epoch }),
                Verdict::Outdated | Verdict::Kept => {}
            }
        }
        Ok(unselected)
    }
}
