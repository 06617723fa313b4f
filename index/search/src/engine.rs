//! [`Engine`], the interface of text engines, and the list of engines.
//!
//! A new engine needs a folder, as [`super::tantivy`] and [`crate::opensearch`] have, and an entry in [`BACKENDS`].
//!
//! Before it calls an engine, [`super::execute`] resolves relations ([`Match::Relation`]) and changed fields
//! ([`Match::Changed`]), and paths ([`Match::Path`]) unless [`Engine::evaluates_paths`] returns true. An engine treats a
//! condition that is not resolved as [`Match::All`]. An engine contains current objects. Earlier versions, manifests and
//! reasons are read from the store, for all engines.
//!
//! Rules for every method:
//!
//! - **Permissions**: an object that the caller may not list is neither found nor counted, nor is it a step of a
//!   relation. The engine applies the permissions of the context before it counts, by deciding scopes
//!   ([`CallerPermissions::cached_decision`]) or by a filter of terms ([`CallerPermissions::scope_terms`]).
//! - **Deadline**: after the deadline, the engine returns the results that it has, marked as incomplete.
//! - **Cancellation**: dropping a future cancels its work. Blocking work that computes counts or looks up objects stops
//!   when [`SearchContext::is_over`] returns true; other blocking work may continue until the deadline.
//! - **Outage**: if the engine, or a part of it, does not respond, the result is incomplete (empty in the worst case) and a
//!   notice names the reason, as for clusters that do not respond.
//! - **Inexact matches**: if the engine cannot match a condition exactly, it finds more or fewer objects and adds a notice.
//! - **Errors**: [`Error::Text`] if the index is damaged or the engine's reply cannot be read.
//! - **Calls**: search calls a method once for each step of a query, such as a step of a relation, with all objects of the
//!   step. An engine never calls back for single documents.
//! - **Types**: types of an engine are not used outside of its folder.

use super::collect::terms::{TermCounts, TermsRequest};
use super::collect::{TopHits, TopHitsRequest};
use super::execute::permits::SearchPermits;
use super::plan::predicate::Match;
use super::plan::sort::RankedHit;
use super::tantivy;
use crate::authorization::{CallerPermissions, RbacRules};
use crate::document::columns::Key;
use crate::opensearch::engine as opensearch;
use async_trait::async_trait;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::CollectionStates;
use crowsnest_store::Store;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::tail::Tail;
use crowsnest_store::{CacheOptions, Error, Seq};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The engines by the names in [`CacheOptions::index_backend`].
pub(crate) const BACKENDS: &[Backend] = &[tantivy::BACKEND, opensearch::BACKEND];

/// Number of ids or keys that every lookup must be able to return. An engine may omit further ones.
pub const MAX_LOOKUP_VALUES: usize = 200_000;

/// The caller's permissions, arrival time and limits of a request.
#[derive(Debug, Clone)]
pub struct SearchContext {
    /// Locked for one decision at a time, never across an await.
    pub permissions: Arc<Mutex<CallerPermissions>>,
    /// Arrival time of the request. Search permits are granted in this order.
    pub requested_at: Instant,
    pub deadline: Instant,
    /// Cancelled when the response is no longer needed.
    pub cancellation: CancellationToken,
}

impl SearchContext {
    /// The context of a request that arrived at `requested_at` and may take `time_limit`.
    pub fn new(permissions: CallerPermissions, requested_at: Instant, time_limit: Duration) -> Self {
        let (permissions, cancellation) = (Arc::new(Mutex::new(permissions)), CancellationToken::new());
        Self { permissions, requested_at, deadline: requested_at + time_limit, cancellation }
    }

    /// Deadline of a part of the response that begins at `start` and may take as long as the request itself.
    pub fn deadline_of_part(&self, start: Instant) -> Instant {
        start + self.deadline.saturating_duration_since(self.requested_at)
    }

    /// True if work for the request must stop: the deadline has passed, or the response is no longer needed.
    pub fn is_over(&self) -> bool {
        self.cancellation.is_cancelled() || Instant::now() > self.deadline
    }
}

/// Ids or keys of matching documents.
#[derive(Debug, Default)]
pub struct Lookup {
    pub values: BTreeSet<u64>,
    /// Values were omitted because of [`MAX_LOOKUP_VALUES`], the deadline or an outage.
    pub incomplete: bool,
    /// Notices for the caller, a sentence each.
    pub notices: BTreeSet<String>,
}

/// Computes the facets and sums of a search until a deadline. The result has no hits, and a total of 0.
pub type PendingCounts = Box<dyn FnOnce(Instant) -> BoxFuture<'static, Result<TopHits, Error>> + Send>;

/// A text engine. It is a trait object because the options of the process choose it; calls are few, so dynamic dispatch
/// costs little.
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync {
    /// The best hits in the order of the request, the total, facet counts, and sums.
    ///
    /// The order is that of [`super::plan::sort::compare`]: the columns of the request, then name, then id. It is total, so
    /// pages neither repeat nor miss a hit of an index that does not change. Scores are the sums of
    /// [`super::plan::score`]. Unless the response is incomplete, the total and the facets are exact counts of everything the
    /// caller may list, including hits before `after`. Sums are exact as well; an engine that rounds large sums adds a notice.
    async fn top_hits(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<TopHits, Error>;

    /// As [`Engine::top_hits`], but the facets and sums are computed afterwards, by the returned function, from the same
    /// snapshot. By default, they are computed together with the hits, for engines that return both in one response.
    async fn hits_before_counts(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<(TopHits, PendingCounts), Error> {
        let mut top = self.top_hits(context, matches, request).await?;
        let counts = top.take_counts();
        Ok((top, Box::new(move |_| std::future::ready(Ok(counts)).boxed())))
    }

    /// Record ids of the matching objects.
    async fn ids(&self, context: &SearchContext, matches: &Match) -> Result<Lookup, Error>;

    /// Keys that the matching objects have in any of the columns: one step of a relation. `matches` may contain
    /// [`MAX_LOOKUP_VALUES`] keys of the previous step.
    async fn keys(&self, context: &SearchContext, matches: &Match, columns: &[Key]) -> Result<Lookup, Error>;

    /// Terms of a column, each with the exact number of matching objects that have it, and with sums of their numbers. An
    /// engine may compare the most frequent terms only; the result is incomplete if a frequent term may be missing. An engine
    /// that rounds large sums adds a notice.
    async fn terms(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TermsRequest,
    ) -> Result<TermCounts, Error>;

    /// Starts to read all hits in the order of [`Engine::top_hits`], after `after` and up to `max_hits`, from one snapshot. Facets
    /// of the request are ignored. Fails with [`Error::Incomplete`] where other methods return an incomplete result, because
    /// an export must not present a partial result as complete.
    async fn scan(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<Box<dyn Scan>, Error>;

    /// Distinct values of [`crate::document::columns::Facet::Scope`] of a cluster's objects, regardless of permissions: the scopes of
    /// the access reviews that are sent to a member whose rules are unknown. Values of deleted objects may be among them.
    async fn scopes(&self, cluster: &ClusterName) -> Result<BTreeSet<String>, Error>;

    /// True if the engine evaluates the paths in this condition itself. Otherwise search evaluates them on manifests first, and
    /// passes [`Match::without_paths`] with the ids of the matching objects to the engine.
    fn evaluates_paths(&self, _matches: &Match) -> bool {
        false
    }

    /// The newest change that searches find: a search that begins after this value was read finds it and all earlier ones,
    /// and possibly newer ones. The distance to the newest change of the cache is the lag of the engine.
    fn searchable(&self) -> watch::Receiver<Seq>;

    /// Reason why changes cannot be written at present, for the status of the cache; None if they can.
    fn write_failure(&self) -> Option<String> {
        None
    }

    /// Status of the writer to an engine outside of this process; None for an in-process engine.
    fn writer(&self) -> Option<WriterStatus> {
        None
    }

    /// Size in bytes of the index on the engine's disks, as last measured; None if it is unknown.
    fn size(&self) -> Option<u64> {
        None
    }

    /// Starts to fill a new index, while the current one serves searches. Fails with [`Error::RebuildNotSupported`] unless the
    /// engine overrides this method.
    async fn rebuild(&self) -> Result<(), Error> {
        Err(Error::RebuildNotSupported)
    }
}

/// State and counters of a writer to an engine outside of this process. Counters begin at 0 with the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriterStatus {
    /// Name of the index that is written to.
    pub index: String,
    pub state: WriterState,
    /// The newest change that the engine has committed; during a rebuild, to the new index.
    pub position: Seq,
    /// Documents written or deleted.
    pub written: u64,
    /// Documents sent that the engine already had in the same or a newer version.
    pub superseded: u64,
    /// Documents sent again.
    pub retried: u64,
    /// Documents rejected by the engine.
    pub refused: u64,
    /// Number of rebuilds of the index.
    pub rebuilds: u64,
    /// The last rejected documents, except those of which the engine has a newer state since.
    pub refused_documents: Vec<RefusedDocument>,
    /// Number of bulk requests.
    pub rounds: u64,
    /// Total duration of bulk requests in microseconds.
    pub round_microseconds: u64,
}

/// Activity of a writer to an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum WriterState {
    #[default]
    Connecting,
    /// Changes are written as they occur.
    Following,
    /// A new index is being filled.
    Rebuilding,
    /// Another process writes to the index.
    Standby,
    /// The engine does not accept writes at present; they are tried again.
    Waiting,
}

/// A document that an engine rejected. An older state of the object remains in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedDocument {
    /// Record id of the object.
    pub id: String,
    pub seq: Seq,
    pub reason: String,
}

/// Hits of one snapshot, read page by page. Holds resources of the engine until it is dropped.
#[async_trait]
pub trait Scan: fmt::Debug + Send {
    /// The newest change that the snapshot includes. Later changes do not affect the hits.
    fn seq(&self) -> Seq;

    /// The next hits, at most `limit`; an empty list at the end. Dropping the future before it is ready ends the scan: further calls fail
    /// with [`Error::Stopped`].
    async fn next(&mut self, limit: usize) -> Result<Vec<RankedHit>, Error>;
}

/// A type of engine, selectable in the options.
pub(crate) struct Backend {
    pub name: &'static str,
    pub open: for<'o> fn(EngineContext<'o>) -> BoxFuture<'o, Result<EngineHandle, Error>>,
    /// Access to the index in the data directory; None if the engine has none there.
    pub local: Option<LocalIndex>,
}

/// Parts of the cache that an engine works with.
pub(crate) struct EngineContext<'o> {
    pub options: &'o CacheOptions,
    /// Identity of the store. An index of another store is rebuilt.
    pub identity: &'o str,
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    /// The known collections, from which [`CallerPermissions::scope_terms`] derives a caller's terms.
    pub states: Arc<CollectionStates>,
    pub rbac_rules: Arc<RbacRules>,
    pub metrics: Arc<Metrics>,
    pub permits: Arc<SearchPermits>,
    /// Written by the engine: the newest change that is durable in the index. The store keeps later deletions, so that the
    /// engine can read them.
    pub committed: Arc<AtomicU64>,
    /// True while this process writes to an index that several processes share.
    pub elected: watch::Receiver<bool>,
    /// Cancelled when the cache stops.
    pub stop: CancellationToken,
}

/// An open engine.
pub(crate) struct EngineHandle {
    pub engine: Arc<dyn Engine>,
    /// Follows the changes of the store into the index until the cache stops. If it ends before that, the cache is unready.
    pub worker: BoxFuture<'static, Result<(), Error>>,
}

/// Operations on an index in the data directory while no process uses it.
pub struct LocalIndex {
    /// Folders of the index in the data directory.
    pub folders: &'static [&'static str],
    /// Checks the index without opening it for searches or writes; None if there is no usable index.
    pub inspect: fn(&Path) -> Result<Option<Inspection>, Error>,
}

/// Findings about an index in the data directory.
#[derive(Debug)]
pub struct Inspection {
    /// Identity of the store that it follows.
    pub identity: String,
    /// The newest change in it.
    pub seq: Seq,
    /// Counted only in an undamaged index.
    pub documents: u64,
    /// Files whose checksums are wrong.
    pub damaged: Vec<PathBuf>,
}

/// Finds a backend by its name.
pub(crate) fn backend(name: &str) -> Result<&'static Backend, Error> {
    let found = BACKENDS.iter().find(|backend| backend.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = BACKENDS.iter().map(|backend| backend.name).collect();
        Error::UnknownBackend { name: name.to_owned(), known: names.join(", ") }
    })
}

/// Every index that backends keep in the data directory.
pub fn local_indexes() -> impl Iterator<Item = &'static LocalIndex> {
    BACKENDS.iter().filter_map(|backend| backend.local.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::user::UserInfo;
    use rstest::rstest;

    #[test]
    fn names_of_backends_are_unique() {
        let names: BTreeSet<&str> = BACKENDS.iter().map(|backend| backend.name).collect();
        assert_eq!(names.len(), BACKENDS.len());
        assert!(names.iter().all(|name| backend(name).is_ok_and(|found| found.name == *name)));
        let unknown = backend("sphinx").map(|found| found.name).unwrap_err().to_string();
        assert_eq!(unknown, "there is no index backend \"sphinx\"; known backends: tantivy, opensearch");
    }

    /// Times are seconds after the arrival of a request with a limit of 10 s.
    #[rstest]
    #[case::at_once(0, 10)]
    #[case::after_a_while(4, 14)]
    #[case::after_the_deadline(60, 70)]
    fn a_part_may_take_as_long_as_the_request(#[case] start: u64, #[case] expected: u64) {
        let requested_at = Instant::now();
        let after = |seconds: u64| requested_at + Duration::from_secs(seconds);
        let permissions = Arc::new(RbacRules::default()).for_caller(&UserInfo::system());
        let context = SearchContext::new(permissions, requested_at, Duration::from_secs(10));
        assert_eq!(context.deadline_of_part(after(start)), after(expected));
    }

    #[rstest]
    #[case::running(60, false, false)]
    #[case::past_the_deadline(0, false, true)]
    #[case::cancelled(60, true, true)]
    fn work_stops_when_the_response_is_not_needed(
        #[case] limit: u64,
        #[case] is_cancelled: bool,
        #[case] expected: bool,
    ) {
        let permissions = Arc::new(RbacRules::default()).for_caller(&UserInfo::system());
        let requested_at = Instant::now() - Duration::from_secs(1);
        let context = SearchContext::new(permissions, requested_at, Duration::from_secs(limit));
        // Each part of a response has a clone of its context.
        let part = context.clone();
        drop(is_cancelled.then(|| context.cancellation.drop_guard()));
        assert_eq!(part.is_over(), expected);
    }

    #[test]
    fn the_default_backend_is_known() {
        assert!(backend(&CacheOptions::new("unused").index_backend).is_ok());
    }
}
