//! Everything a question finds, as it was at one moment: hits are those of one state of the text index, and objects are told as
//! they were then, from what is kept of those that have changed or gone since.
//!
//! A task of the cache's reads ahead a little of whoever is told, waits for them, and ends when they go or have taken nothing
//! for [`STALLED`].

use crate::authorization::CallerRights;
use crate::authorization::decision::permits;
use crate::collect::TopHitsRequest;
use crate::document::columns::scope_of;
use crate::execute::begin;
use crate::execute::scan::FullScan;
use crate::plan::sort::Ranked;
use crate::{Hit, Planned, SearchRequest, Searcher, Was};
use crowsnest_apimachinery::rbac::Reading;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::Manifests;
use crowsnest_store::{Error, Seq};
use futures::Stream;
use futures::stream::try_unfold;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Hits read at once.
const AT_ONCE: usize = 200;
/// Whoever takes nothing for so long is gone, for all one can tell: an export keeps files of the text index open.
const STALLED: Duration = Duration::from_secs(300);

/// A piece of an export.
enum Told {
    Hits(Vec<Hit>),
    End(Result<(), Error>),
}

impl Searcher {
    /// Everything a question finds, or as much of it as its limits say, without reasons; with manifests where the request wants
    /// bodies. Fails where an answer would not be whole, before anything is told; breaks off with an error where the caller
    /// may not read something any more that was to be told.
    pub async fn export(
        &self,
        request: SearchRequest,
    ) -> Result<impl Stream<Item = Result<Vec<Hit>, Error>> + Send + 'static, Error> {
        let (Planned { query, plan, sort, world, .. }, sources) = self.planned(&request).await;
        let limits = [query.output.limit, request.limit];
        let scanned = TopHitsRequest {
            sort,
            after: request.after,
            keep: limits.into_iter().flatten().min().unwrap_or(usize::MAX),
            world,
            ..TopHitsRequest::total()
        };
        let scan = begin(&sources, plan, scanned).await?;
        self.inner.metrics.searches.add(1);
        let manifests = if request.bodies { Manifests::Read } else { Manifests::Left };
        let exporting =
            Exporting { searcher: self.clone(), caller: request.caller, rights: sources.context.rights, manifests };
        let (told, tells) = mpsc::channel(1);
        let watched = told.clone();
        let work = async move {
            let ended = exporting.tell(scan, &told).await;
            // Nobody is told when they are gone.
            drop(told.send_timeout(Told::End(ended), STALLED).await);
        };
        self.spawn("export", async move {
            tokio::select! {
                () = watched.closed() => {}
                () = work => {}
            }
        });
        Ok(try_unfold(tells, |mut tells| async move {
            match tells.recv().await {
                Some(Told::Hits(hits)) => Ok(Some((hits, tells))),
                Some(Told::End(ended)) => ended.map(|()| None),
                // A part must not look like the whole.
                None => Err(Error::Stopped),
            }
        }))
    }
}

struct Exporting {
    searcher: Searcher,
    caller: UserInfo,
    /// As they were at the beginning.
    rights: Arc<Mutex<CallerRights>>,
    manifests: Manifests,
}

impl Exporting {
    async fn tell(&self, mut scan: FullScan, told: &mpsc::Sender<Told>) -> Result<(), Error> {
        let seq = scan.seq();
        loop {
            let hits = scan.next(AT_ONCE).await?;
            if hits.is_empty() {
                return Ok(());
            }
            let hits = self.read(hits, seq).await?;
            self.readable(&hits)?;
            if told.send_timeout(Told::Hits(hits), STALLED).await.is_err() {
                return Err(Error::Stopped);
            }
        }
    }

    /// Those deleted since of which nothing is kept any more are left out.
    async fn read(&self, hits: Vec<Ranked>, seq: Seq) -> Result<Vec<Hit>, Error> {
        let store = &self.searcher.inner.store;
        let ids: Vec<u64> = hits.iter().filter(|hit| hit.past.is_none()).map(|hit| hit.place.id).collect();
        let ended: Vec<Seq> = hits.iter().filter_map(|hit| hit.past).collect();
        let _permit = self.searcher.inner.permits.acquire(Instant::now()).await;
        let objects = store.by_ids(&ids, self.manifests).await?;
        let mut objects: HashMap<u64, _> = objects.into_iter().map(|object| (object.record.id, object)).collect();
        let changed = |id: &u64| objects.get(id).is_none_or(|object| object.record.seq > seq);
        let changed: Vec<u64> = ids.iter().copied().filter(changed).collect();
        if !changed.is_empty() {
            let before = store.as_of(seq, &changed).await?;
            objects.extend(before.into_iter().map(|version| (version.object.record.id, version.object)));
        }
        let versions = if ended.is_empty() { Vec::new() } else { store.ended(&ended).await? };
        let mut versions: HashMap<Seq, _> = versions.into_iter().map(|version| (version.ended, version)).collect();
        let hit = |hit: Ranked| {
            let (object, was) = match hit.past {
                None => (objects.remove(&hit.place.id)?, None),
                Some(ended) => {
                    let version = versions.remove(&ended)?;
                    (version.object, Some(Was { until: version.ended_at, deleted: version.deleted }))
                }
            };
            Some(Hit { object, was, score: hit.score, reasons: Vec::new() })
        };
        Ok(hits.into_iter().filter_map(hit).collect())
    }

    /// Whether the caller may read them still: rights are not those of one moment.
    fn readable(&self, hits: &[Hit]) -> Result<(), Error> {
        let mut now = self.searcher.inner.rights.of(&self.caller);
        let changed = now.changed_since(&self.rights.lock());
        let concerned = hits.iter().map(|hit| &hit.object.record.key).filter(|key| changed.contains(key.cluster()));
        for key in concerned {
            if !permits(&mut now, Reading::Listing, &scope_of(key), &key.name) {
                return Err(Error::Incomplete);
            }
        }
        Ok(())
    }
}
