//! Exports all results of a search from one snapshot: the hits of one state of the text index, and each object as of that
//! state, from the history if the object was changed or deleted since.
//!
//! A task of the cache reads slightly ahead of the client. It ends when the client disconnects or does not read for
//! [`STALLED_CLIENT_TIMEOUT`].

use crate::authorization::CallerPermissions;
use crate::authorization::decision::allows_read;
use crate::collect::TopHitsRequest;
use crate::document::columns::scope_of;
use crate::execute::begin_scan;
use crate::execute::scan::FullScan;
use crate::hydrate::STALLED_CLIENT_TIMEOUT;
use crate::plan::sort::RankedHit;
use crate::{Hit, PlannedSearch, SearchRequest, Searcher, VersionEnd};
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::BodyMode;
use crowsnest_store::ingest::without_secret_values;
use crowsnest_store::{Error, Seq};
use futures::Stream;
use futures::stream::try_unfold;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Number of hits per message to the client.
const BATCH_SIZE: usize = 200;
/// A message from the export task to the stream that a client reads.
enum ExportMessage {
    Hits(Vec<Hit>),
    End(Result<(), Error>),
}

impl Searcher {
    /// Exports all results, up to the limits of the request, without reasons, and with manifests if the request
    /// includes them. Fails with [`Error::Incomplete`] before the first hit if the result would be incomplete, and later if
    /// the caller has lost the permission for a hit since.
    pub async fn export(
        &self,
        request: SearchRequest,
    ) -> Result<impl Stream<Item = Result<Vec<Hit>, Error>> + Send + 'static, Error> {
        let (PlannedSearch { query, plan, sort, planning_context, .. }, sources) = self.plan_search(&request).await;
        let limits = [query.output.limit, request.page.limit];
        let scanned = TopHitsRequest {
            sort,
            after: request.page.after,
            max_hits: limits.into_iter().flatten().min().unwrap_or(usize::MAX),
            planning_context,
            ..TopHitsRequest::total_only()
        };
        let scan = begin_scan(&sources, plan, scanned).await?;
        self.inner.cache.metrics.searches.add(1);
        let manifests = if request.include_manifests { BodyMode::Read } else { BodyMode::Skip };
        let export = ExportTask {
            searcher: self.clone(),
            caller: request.caller,
            permissions: sources.context.permissions,
            manifests,
        };
        let (sender, receiver) = mpsc::channel(1);
        let watched = sender.clone();
        let work = async move {
            let result = export.send(scan, &sender).await;
            // The send fails if the client has disconnected.
            drop(sender.send_timeout(ExportMessage::End(result), STALLED_CLIENT_TIMEOUT).await);
        };
        self.spawn("export", async move {
            tokio::select! {
                () = watched.closed() => {}
                () = work => {}
            }
        });
        Ok(try_unfold(receiver, |mut receiver| async move {
            match receiver.recv().await {
                Some(ExportMessage::Hits(hits)) => Ok(Some((hits, receiver))),
                Some(ExportMessage::End(result)) => result.map(|()| None),
                // A partial result must not look complete.
                None => Err(Error::Stopped),
            }
        }))
    }
}

/// Reads the hits of an export and sends them to the client's stream.
struct ExportTask {
    searcher: Searcher,
    caller: UserInfo,
    /// The caller's permissions at the start.
    permissions: Arc<Mutex<CallerPermissions>>,
    manifests: BodyMode,
}

impl ExportTask {
    async fn send(&self, mut scan: FullScan, sender: &mpsc::Sender<ExportMessage>) -> Result<(), Error> {
        let seq = scan.seq();
        loop {
            let hits = scan.next(BATCH_SIZE).await?;
            if hits.is_empty() {
                return Ok(());
            }
            let hits = self.read(hits, seq).await?;
            self.check_permissions(&hits)?;
            if sender.send_timeout(ExportMessage::Hits(hits), STALLED_CLIENT_TIMEOUT).await.is_err() {
                return Err(Error::Stopped);
            }
        }
    }

    /// Reads the objects of hits, without values of Secrets. Omits deleted objects of which the store has no version.
    async fn read(&self, hits: Vec<RankedHit>, seq: Seq) -> Result<Vec<Hit>, Error> {
        let store = &self.searcher.inner.cache.store;
        let ids: Vec<u64> = hits.iter().filter(|hit| hit.ended_by.is_none()).map(|hit| hit.position.id).collect();
        let ended: Vec<Seq> = hits.iter().filter_map(|hit| hit.ended_by).collect();
        let _permit = self.searcher.inner.permits.acquire(Instant::now()).await;
        let objects = store.by_ids(&ids, self.manifests).await?;
        let mut objects: HashMap<u64, _> = objects.into_iter().map(|object| (object.record.id, object)).collect();
        let changed = |id: &u64| objects.get(id).is_none_or(|object| object.record.seq > seq);
        let changed: Vec<u64> = ids.iter().copied().filter(changed).collect();
        if !changed.is_empty() {
            let before = store.as_of(seq, &changed).await?;
            objects.extend(before.into_iter().map(|version| (version.object.record.id, version.object)));
        }
        let versions = if ended.is_empty() { Vec::new() } else { store.versions_ended_by(&ended).await? };
        let mut versions: HashMap<Seq, _> = versions.into_iter().map(|version| (version.ended, version)).collect();
        let hit = |hit: RankedHit| {
            let (object, version_end) = match hit.ended_by {
                None => (objects.remove(&hit.position.id)?, None),
                Some(ended) => {
                    let version = versions.remove(&ended)?;
                    (version.object, Some(VersionEnd { until: version.ended_at, deleted: version.deleted }))
                }
            };
            Some(Hit { object, version_end, score: hit.score, reasons: Vec::new() })
        };
        let redact = |hit: Hit| Ok(Hit { object: without_secret_values(&hit.object)?.into_owned(), ..hit });
        hits.into_iter().filter_map(hit).map(redact).collect()
    }

    /// Checks that the caller may still read the hits, because permissions are not part of the snapshot.
    fn check_permissions(&self, hits: &[Hit]) -> Result<(), Error> {
        let mut now = self.searcher.inner.rbac_rules.for_caller(&self.caller);
        let changed = now.changed_since(&self.permissions.lock());
        let affected = hits.iter().map(|hit| &hit.object.record.key).filter(|key| changed.contains(key.cluster()));
        for key in affected {
            if !allows_read(&mut now, ReadKind::Listing, &scope_of(key), &key.name) {
                return Err(Error::Incomplete);
            }
        }
        Ok(())
    }
}
