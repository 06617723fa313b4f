//! Streams the logs of many pods in many members.
//!
//! A search of the cache selects the pods, restricted to those that the caller may read ([`select`]). Each log is
//! requested from its member as the caller, so the member authorizes `pods/log`; a refusal is reported and does not
//! stop the other logs. Without `follow`, lines are merged by timestamp ([`merge`]). With `follow`, lines are sent
//! as they arrive and new pods are added ([`follow`]). Logs are read no faster than the client reads.

mod follow;
mod follower;
mod line;
mod merge;
mod pod;
mod read;
mod select;

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::{Hit, Object, Record, SearchEvent, SearchRequest, SkippedCluster, Summary};
use crowsnest_search::{LiveEvent, Notice};
use futures::TryStreamExt;
use futures::stream::{BoxStream, StreamExt, once};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Semaphore;

pub use self::line::{Line, MAX_LINE_BYTES};
use self::merge::merge_by_time;
use self::pod::{Container, Pod};
use self::read::LogReader;
pub use self::read::{Refusal, SourceEvent};
pub use self::select::{DEFAULT_STREAMS, LogRequest, MAX_STREAMS};
use crate::{Caller, Error, Proxy};

/// Maximum number of open log streams of all requests.
pub(crate) const MAX_STREAMS_OF_ALL_REQUESTS: usize = 1000;
/// Maximum number of pods per request.
const MAX_PODS: usize = 1000;

/// A container whose log is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LogSource {
    pub cluster: ClusterName,
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

/// An event of a log stream.
#[derive(Debug, Clone)]
pub enum LogEvent {
    /// Notices of the search about its query.
    Notices(Vec<Notice>),
    /// Clusters whose pods are unknown or outdated.
    Skipped(Vec<SkippedCluster>),
    Source(Arc<LogSource>, SourceEvent),
    /// The pods can no longer be followed. This is the last event.
    Failed(String),
    Done(LogSummary),
}

/// Summary at the end of a log stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LogSummary {
    pub lines: u64,
    /// Number of logs requested.
    pub logs: u64,
    /// Number of refused or interrupted logs.
    pub refused: u64,
    /// Reason why following ended.
    #[serde(rename = "why", skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<&'static str>,
}

impl LogSummary {
    fn count(&mut self, event: &SourceEvent) {
        match event {
            SourceEvent::Started => self.logs += 1,
            SourceEvent::Line(_) => self.lines += 1,
            SourceEvent::Refused(_) => self.refused += 1,
            SourceEvent::Ended(_) => {}
        }
    }
}

/// Events of the search that selects the pods.
type Selection = BoxStream<'static, Result<LiveEvent, crowsnest_index::Error>>;

/// The search for pods and the request it serves.
#[derive(Clone)]
struct PodSearch {
    reader: LogReader,
    search: SearchRequest,
}

/// The pods that the search found before logs are read.
#[derive(Default)]
struct FoundPods {
    notices: Vec<Notice>,
    skipped: Vec<SkippedCluster>,
    pods: Vec<(Arc<Record>, Pod)>,
}

impl Proxy {
    /// Streams the logs that a request selects, as the caller. `scopes` are the saved queries that `scope:` may
    /// name.
    pub async fn logs(
        &self,
        caller: &Caller,
        request: LogRequest,
        scopes: BTreeMap<String, String>,
    ) -> Result<BoxStream<'static, LogEvent>, Error> {
        let started_at = Timestamp::now();
        let mut search = SearchRequest::new(request.search.as_str(), caller.clone()).with_limit(MAX_PODS);
        search.scopes = scopes;
        search.counts.facets.clear();
        search.include_manifests = true;
        if let Some(reason) = search.query_error() {
            return Err(Error::BadRequest(reason));
        }
        let permits = Arc::new(Semaphore::new(request.max_streams));
        let (proxy, caller) = (self.clone(), Arc::new(caller.clone()));
        let reader = LogReader { proxy, caller, request: Arc::new(request), permits };
        let search = PodSearch { reader, search };
        let mut selection = search.select();
        let mut found = search.find_pods(&mut selection).await?;
        found.pods.sort_by(|(left, _), (right, _)| left.key.cmp(&right.key));
        search.check_limits(&found)?;
        let stopping = self.inner.stopping.clone();
        let events = match search.reader.request.follow {
            true => follow::follow(search, selection, found, started_at),
            false => search.read_logs(found),
        };
        Ok(events.take_until(async move { stopping.cancelled().await }).boxed())
    }
}

impl PodSearch {
    /// Starts the search. With `follow`, it stays open.
    fn select(&self) -> Selection {
        let cache = &self.reader.proxy.inner.cache;
        match self.reader.request.follow {
            true => cache.searcher().live(self.search.clone()).boxed(),
            false => cache.searcher().search(self.search.clone()).map_ok(LiveEvent::Initial).boxed(),
        }
    }

    /// Collects the complete first result of the search.
    async fn find_pods(&self, selection: &mut Selection) -> Result<FoundPods, Error> {
        let mut found = FoundPods::default();
        while let Some(event) = selection.next().await {
            let LiveEvent::Initial(event) = event? else { continue };
            match event {
                SearchEvent::Notices(notices) => found.notices.extend(notices),
                SearchEvent::Skipped(skipped) => found.skipped = self.selected_clusters(skipped),
                SearchEvent::Hits(hits) => {
                    for hit in hits {
                        found.pods.extend(self.pod(&hit)?);
                    }
                }
                SearchEvent::Done(summary) => {
                    check_complete(&summary)?;
                    break;
                }
                SearchEvent::Facets(_) | SearchEvent::Groups(_) | SearchEvent::Summary(_) => {}
            }
        }
        Ok(found)
    }

    /// Skipped clusters that the request selects.
    fn selected_clusters(&self, mut skipped: Vec<SkippedCluster>) -> Vec<SkippedCluster> {
        let filter = &self.reader.request.filter;
        skipped.retain(|skipped| !skipped.cluster.is_control_plane() && filter.matches_cluster(&skipped.cluster));
        skipped
    }

    /// The pod of a hit, if it exists now and is selected.
    fn pod(&self, hit: &Hit) -> Result<Option<(Arc<Record>, Pod)>, Error> {
        let Object { record, body } = &hit.object;
        if hit.version_end.is_some() || !self.reader.request.filter.matches(record) {
            return Ok(None);
        }
        Ok(Some((Arc::clone(record), Pod::parse(body)?)))
    }

    /// Fails if more logs were found than may be open at once.
    fn check_limits(&self, found: &FoundPods) -> Result<(), Error> {
        let request = &self.reader.request;
        let is_read = |container: &&Container| container.state.has_started || !request.follow;
        let log_count = |pod: &Pod| pod.selected_containers(&request.filter).filter(is_read).count();
        let logs: usize = found.pods.iter().map(|(_, pod)| log_count(pod)).sum();
        if logs <= request.max_streams {
            return Ok(());
        }
        let (pods, max) = (found.pods.len(), request.max_streams);
        Err(Error::BadRequest(format!(
            "{pods} pods with {logs} logs were found, and at most {max} can be read at once; narrow the query or raise maxStreams \
             (limit {MAX_STREAMS})"
        )))
    }

    /// The selected containers of a pod.
    fn sources<'s>(&'s self, record: &'s Record, pod: &'s Pod) -> impl Iterator<Item = LogSource> {
        pod.selected_containers(&self.reader.request.filter).map(|container| LogSource {
            cluster: record.key.cluster().clone(),
            namespace: record.key.namespace.to_string(),
            pod: record.key.name.to_string(),
            container: container.name.clone(),
        })
    }

    /// Reads all logs up to now, merged by time.
    fn read_logs(&self, mut found: FoundPods) -> BoxStream<'static, LogEvent> {
        let sources = found.pods.iter().flat_map(|(record, pod)| self.sources(record, pod));
        let sources: Vec<Arc<LogSource>> = sources.map(Arc::new).collect();
        let logs = sources.iter().map(|source| self.reader.clone().stream(Arc::clone(source))).collect();
        let log_summary = Arc::new(parking_lot::Mutex::new(LogSummary::default()));
        let summary = Arc::clone(&log_summary);
        let lines = merge_by_time(logs).filter_map(move |(number, source_event)| {
            summary.lock().count(&source_event);
            std::future::ready(sources.get(number).map(|source| LogEvent::Source(Arc::clone(source), source_event)))
        });
        let done = once(async move { LogEvent::Done(log_summary.lock().clone()) });
        found.opening_events().chain(lines).chain(done).boxed()
    }
}

impl FoundPods {
    /// Events sent before any log line.
    fn opening_events(&mut self) -> impl futures::Stream<Item = LogEvent> + Send + 'static {
        let (notices, skipped) = (std::mem::take(&mut self.notices), self.skipped.clone());
        let notices = (!notices.is_empty()).then_some(LogEvent::Notices(notices));
        let skipped = (!skipped.is_empty()).then_some(LogEvent::Skipped(skipped));
        futures::stream::iter(notices.into_iter().chain(skipped))
    }
}

/// Fails if the result of the search is incomplete, because it must not be mistaken for all pods.
fn check_complete(summary: &Summary) -> Result<(), Error> {
    if summary.incomplete {
        return Err(Error::Cache(crowsnest_index::Error::Incomplete));
    }
    match summary.next {
        Some(_) => Err(Error::BadRequest(format!(
            "{} pods were found, and a request is limited to {MAX_PODS}; narrow the query",
            summary.total
        ))),
        None => Ok(()),
    }
}
