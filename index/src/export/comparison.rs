//! Compares an index with the store and applies the differences.
//!
//! Documents are read page by page. The uids of selected objects are held in memory, up to a limit; with more
//! objects, the index is read several times, each time for another part of the uids.

use super::compare::{Verdict, verdict};
use super::error::ExportError;
use super::exporter::{Exporter, Session};
use super::indices;
use super::progress::ExportState;
use super::scan::{Found, Scan};
use super::selection::Belongs;
use super::source::ObjectChange;
use super::version::DocumentVersion;
use crowsnest_search::opensearch::bulk::DocumentChange;
use crowsnest_store::CollectionKey;
use crowsnest_store::{BodyMode, Scan as StoreScan};
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_128;

/// Records read from the store at once.
const RECORDS: usize = 1000;
/// Objects written at once.
const OBJECTS: usize = 200;

/// An object that should be in the index.
struct Wanted {
    seq: u64,
    id: u64,
}

/// Uids of a part of the objects, by their digest.
type WantedPart = HashMap<u128, Wanted>;

/// One of several parts of all uids.
#[derive(Clone, Copy)]
struct Part {
    number: u128,
    of: u128,
}

impl Part {
    /// The digest of a uid of this part.
    fn digest(self, uid: &str) -> Option<u128> {
        let digest = xxh3_128(uid.as_bytes());
        (digest % self.of == self.number).then_some(digest)
    }
}

impl Exporter {
    /// Makes an index equal to the store at the start of the call or shortly after. Returns the uuid of the index.
    pub(super) async fn compare(
        &self,
        session: &mut Session,
        index: &str,
        failures: &mut u32,
    ) -> Result<String, ExportError> {
        self.change(|progress| progress.state = ExportState::Comparing { index: index.to_owned() });
        let uuid = indices::ensure(&self.client, index).await?;
        indices::refresh(&self.client, index).await?;
        // Deletions get the newest change as version, so that later writes supersede them.
        let latest = self.source.latest();
        let is_complete = |key: &CollectionKey| self.states.get(key).is_some_and(|state| state.complete);
        let incomplete = session.selection.of_index(index).map(|(key, _)| key).filter(|key| !is_complete(key));
        let incomplete: Vec<CollectionKey> = incomplete.cloned().collect();
        let clusters = session.selection.clusters_of(index, is_complete);
        session.incomplete.extend(incomplete);
        let parts = self.parts(session, index).await?;
        for number in 0..parts {
            let part = Part { number, of: parts };
            let mut wanted = self.wanted(session, index, part).await?;
            let comparing = Comparing { session, index, part, clusters: &clusters, latest };
            self.remove_unwanted(&comparing, &mut wanted, failures).await?;
            self.write_wanted(&comparing, wanted, failures).await?;
        }
        *failures = 0;
        self.change(|progress| progress.comparisons += 1);
        Ok(uuid)
    }

    /// Number of parts, so that each holds a bounded number of uids.
    async fn parts(&self, session: &Session, index: &str) -> Result<u128, ExportError> {
        let counts: BTreeMap<CollectionKey, u64> = self.source.store.counts().await?.into_iter().collect();
        let records: u64 = session.selection.of_index(index).filter_map(|(key, _)| counts.get(key)).sum();
        Ok(u128::from(records.div_ceil(self.options.compared.max(1) as u64).max(1)))
    }

    async fn wanted(&self, session: &Session, index: &str, part: Part) -> Result<WantedPart, ExportError> {
        let mut wanted = WantedPart::new();
        for (key, namespaces) in session.selection.of_index(index) {
            let mut scan =
                StoreScan { collection: key.clone(), namespaces: namespaces.cloned(), after: None, labels: None };
            loop {
                let (records, next) = self.source.store.records(&scan, &|_| Ok(true), RECORDS).await?;
                for record in records {
                    let Some(digest) = part.digest(&record.uid).filter(|_| !record.uid.is_empty()) else { continue };
                    let found = Wanted { seq: record.seq.0, id: record.id };
                    // Two groups may serve the same object; the newest change is written.
                    let newest = wanted.entry(digest).or_insert(Wanted { ..found });
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
        Ok(wanted)
    }

    /// Deletes documents that do not belong into the index. Takes those that are current out of `wanted`.
    async fn remove_unwanted(
        &self,
        comparing: &Comparing<'_>,
        wanted: &mut WantedPart,
        failures: &mut u32,
    ) -> Result<(), ExportError> {
        let mut scan = Scan::new(&self.client, comparing.index, self.options.page);
        let result = loop {
            let page = match scan.next().await {
                Ok(page) if page.is_empty() => break Ok(()),
                Ok(page) => page,
                Err(error) => break Err(error),
            };
            let unwanted = match comparing.judge_all(page, wanted) {
                Ok(unwanted) => unwanted,
                Err(error) => break Err(error),
            };
            if !unwanted.is_empty()
                && let Err(error) = self.send(comparing.index, unwanted, failures).await
            {
                break Err(error);
            }
        };
        scan.close().await;
        result
    }

    async fn write_wanted(
        &self,
        comparing: &Comparing<'_>,
        wanted: WantedPart,
        failures: &mut u32,
    ) -> Result<(), ExportError> {
        let mut ids: Vec<u64> = wanted.into_values().map(|wanted| wanted.id).collect();
        ids.sort_unstable();
        for ids in ids.chunks(OBJECTS) {
            // Objects deleted in the meantime are omitted; their deletion follows.
            let objects = self.source.store.by_ids(ids, BodyMode::Read).await?;
            let changes = objects.into_iter().map(|object| {
                let record = &object.record;
                let (seq, key, uid) = (record.seq.0, record.key.clone(), record.uid.clone());
                (comparing.index.to_owned(), ObjectChange { seq, key, uid, object: Some(object) })
            });
            for (index, changes) in self.documents(changes.collect(), comparing.session.epochs.last).await? {
                self.send(&index, changes, failures).await?;
            }
        }
        Ok(())
    }
}

/// A part of an index that is compared.
struct Comparing<'c> {
    session: &'c Session,
    index: &'c str,
    part: Part,
    /// State of the documents of each cluster.
    clusters: &'c BTreeMap<String, Belongs>,
    latest: u64,
}

impl Comparing<'_> {
    /// Deletions of documents that do not belong into the index.
    fn judge_all(&self, page: Vec<Found>, wanted: &mut WantedPart) -> Result<Vec<DocumentChange>, ExportError> {
        let mut unwanted = Vec::new();
        for found in page {
            let Some(digest) = self.part.digest(&found.id) else { continue };
            let belongs = self.clusters.get(&found.cluster).copied().unwrap_or(Belongs::No);
            let seq = wanted.get(&digest).map(|wanted| wanted.seq);
            match verdict(found.version, seq, belongs, self.session.epochs) {
                Verdict::Current => drop(wanted.remove(&digest)),
                Verdict::Unwanted => unwanted.push(DocumentChange {
                    seq: DocumentVersion::of(self.session.epochs.last, self.latest).number(),
                    id: found.id,
                    document: None,
                }),
                Verdict::Ahead { epoch } => return Err(ExportError::Ahead { epoch }),
                Verdict::Outdated | Verdict::Kept => {}
            }
        }
        Ok(unwanted)
    }
}
