//! The text index as an [`Engine`]: blocking work on segments, within search permits.

use super::TextIndex;
use super::reader::collector;
use super::reader::lookup::SegmentLookup;
use super::reader::scan::SnapshotScan;
use super::reader::warm_up;
use super::writer::TextFollower;
use crate::collect::terms::{TermCounts, TermsRequest};
use crate::collect::{TopHits, TopHitsRequest};
use crate::document::columns::{Facet, Key, SCOPE_SEPARATOR};
use crate::engine::{Engine, EngineContext, EngineHandle, Lookup, PendingCounts, Scan, SearchContext};
use crate::execute::permits::SearchPermits;
use crate::plan::predicate::Match;
use crate::plan::sort::RankedHit;
use async_trait::async_trait;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::error::join_result;
use crowsnest_store::{Error, Seq};
use futures::FutureExt;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// Opens the text index and prepares its writer.
pub fn open(context: EngineContext<'_>) -> Result<EngineHandle, Error> {
    let EngineContext { options, store, tail, rbac_rules, metrics, permits, committed, stop, .. } = context;
    let opened = TextIndex::open(options, context.identity)?;
    let text = Arc::clone(&opened.0);
    let (follower, searchable) =
        TextFollower::new(opened, store, tail, metrics, committed, options, warm_up::with_rules(rbac_rules));
    let engine = Arc::new(TantivyEngine::new(text, permits, searchable));
    Ok(EngineHandle { engine, worker: Box::pin(follower.run(stop)) })
}

/// Searches the text index of this process.
#[derive(Debug)]
pub struct TantivyEngine {
    text: Arc<TextIndex>,
    permits: Arc<SearchPermits>,
    searchable: watch::Receiver<Seq>,
}

impl TantivyEngine {
    pub fn new(text: Arc<TextIndex>, permits: Arc<SearchPermits>, searchable: watch::Receiver<Seq>) -> Self {
        Self { text, permits, searchable }
    }

    /// Runs blocking work on the index within the request's permit.
    async fn run<T: Send + 'static>(
        &self,
        context: &SearchContext,
        work: impl FnOnce(&TextIndex, SearchContext) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (text, context) = (Arc::clone(&self.text), context.clone());
        self.permits.run(context.requested_at, move || work(&text, context)).await
    }
}

#[async_trait]
impl Engine for TantivyEngine {
    async fn top_hits(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<TopHits, Error> {
        let (matches, request) = (matches.clone(), request.clone());
        self.run(context, move |text, context| collector::top_hits(text, &context, &matches, &request)).await
    }

    async fn hits_before_counts(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<(TopHits, PendingCounts), Error> {
        let (matches, request) = (matches.clone(), Arc::new(request.clone()));
        let counted = Arc::clone(&request);
        let find =
            move |text: &TextIndex, context: SearchContext| collector::find_hits(text, &context, &matches, &request);
        let (top, found) = self.run(context, find).await?;
        let (text, permits, context) = (Arc::clone(&self.text), Arc::clone(&self.permits), context.clone());
        let count = move |deadline: Instant| {
            let context = SearchContext { deadline, ..context };
            // The hits of newer requests come first.
            let counts = async move {
                permits.run(Instant::now(), move || collector::count(&text, &context, &found, &counted)).await
            };
            counts.boxed()
        };
        Ok((top, Box::new(count)))
    }

    async fn ids(&self, context: &SearchContext, matches: &Match) -> Result<Lookup, Error> {
        let matches = matches.clone();
        self.run(context, move |text, context| SegmentLookup::new(text, &context).ids(&matches)).await
    }

    async fn keys(&self, context: &SearchContext, matches: &Match, columns: &[Key]) -> Result<Lookup, Error> {
        let (matches, columns) = (matches.clone(), columns.to_vec());
        self.run(context, move |text, context| SegmentLookup::new(text, &context).keys(&matches, &columns)).await
    }

    async fn terms(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TermsRequest,
    ) -> Result<TermCounts, Error> {
        let (matches, request) = (matches.clone(), request.clone());
        self.run(context, move |text, context| SegmentLookup::new(text, &context).terms(&matches, &request)).await
    }

    async fn scan(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<Box<dyn Scan>, Error> {
        let (matches, request) = (matches.clone(), request.clone());
        let scan =
            self.run(context, move |text, context| SnapshotScan::begin(text, &context, &matches, request)).await?;
        Ok(Box::new(TantivyScan { seq: scan.seq(), permits: Arc::clone(&self.permits), scan: Some(scan) }))
    }

    async fn scopes(&self, cluster: &ClusterName) -> Result<BTreeSet<String>, Error> {
        let (text, cluster) = (Arc::clone(&self.text), cluster.clone());
        join_result(tokio::task::spawn_blocking(move || scopes(&text, &cluster)).await)
    }

    fn searchable(&self) -> watch::Receiver<Seq> {
        self.searchable.clone()
    }
}

fn scopes(text: &TextIndex, cluster: &ClusterName) -> Result<BTreeSet<String>, Error> {
    let prefix = format!("{cluster}{SCOPE_SEPARATOR}");
    let fail = |error| Error::text("cannot be read", error);
    let mut scopes = BTreeSet::new();
    for segment in text.searcher().segment_readers() {
        let Some(column) = segment.fast_fields().str(Facet::Scope.column()).map_err(fail)? else { continue };
        let terms = column.dictionary().prefix_range(&prefix).into_stream();
        let mut terms = terms.map_err(|error| fail(error.into()))?;
        while terms.advance() {
            scopes.extend(std::str::from_utf8(terms.key()).ok().map(str::to_owned));
        }
    }
    Ok(scopes)
}

/// A scan of one snapshot. Each page needs a separate permit, so that a full scan does not block other searches.
struct TantivyScan {
    seq: Seq,
    permits: Arc<SearchPermits>,
    /// None while a page is being read.
    scan: Option<SnapshotScan>,
}

impl fmt::Debug for TantivyScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TantivyScan").field("seq", &self.seq).finish_non_exhaustive()
    }
}

#[async_trait]
impl Scan for TantivyScan {
    fn seq(&self) -> Seq {
        self.seq
    }

    async fn next(&mut self, limit: usize) -> Result<Vec<RankedHit>, Error> {
        let mut scan = self.scan.take().ok_or(Error::Stopped)?;
        let work = move || {
            let hits = scan.next(limit)?;
            Ok((scan, hits))
        };
        let (scan, hits) = self.permits.run(Instant::now(), work).await?;
        self.scan = Some(scan);
        Ok(hits)
    }
}
