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
use crowsnest_index::{Hit, Object, Record, SearchEvent, SearchRequest, Skipped, Summary};
use crowsnest_search::{LiveEvent, Remark};
use futures::TryStreamExt;
use futures::stream::{BoxStream, StreamExt, once};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Semaphore;

pub use self::line::{LONGEST_LINE, Line};
use self::merge::merged;
use self::pod::Pod;
use self::read::LogReader;
pub use self::read::{Refusal, SourceEvent};
pub use self::select::{LogRequest, MOST_STREAMS, STREAMS};
use crate::{Caller, Error, Proxy};

/// Maximum number of open log streams of all requests.
pub(crate) const STREAMS_OF_ALL: usize = 1000;
/// Maximum number of pods per request.
const MOST_PODS: usize = 1000;

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
    /// Remarks of the search about its query.
    Notices(Vec<Remark>),
    /// Clusters whose pods are unknown or outdated.
    Skipped(Vec<Skipped>),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
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

type Selection = BoxStream<'static, Result<LiveEvent, crowsnest_index::Error>>;

/// The search for pods and the request it serves.
#[derive(Clone)]
struct Selecting {
    reader: LogReader,
    search: SearchRequest,
}

/// First results of the search.
#[derive(Default)]
struct Found {
    notices: Vec<Remark>,
    skipped: Vec<Skipped>,
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
        let began = Timestamp::now();
        let mut search = SearchRequest::new(request.search.as_str(), caller.clone());
        search.scopes = scopes;
        search.limit = Some(MOST_PODS);
        search.facets.clear();
        search.bodies = true;
        if let Some(why) = search.query_error() {
            return Err(Error::BadRequest(why));
        }
        let slots = Arc::new(Semaphore::new(request.most));
        let (proxy, caller) = (self.clone(), Arc::new(caller.clone()));
        let selecting = Selecting { reader: LogReader { proxy, caller, request: Arc::new(request), slots }, search };
        let mut selection = selecting.select();
        let mut found = selecting.first(&mut selection).await?;
        found.pods.sort_by(|(one, _), (other, _)| one.key.cmp(&other.key));
        selecting.allows(&found)?;
        let stopping = self.inner.stopping.clone();
        let events = match selecting.reader.request.follow {
            true => follow::follow(selecting, selection, found, began),
            false => selecting.whole(found),
        };
        Ok(events.take_until(async move { stopping.cancelled().await }).boxed())
    }
}

impl Selecting {
    fn select(&self) -> Selection {
        let index = &self.reader.proxy.inner.index;
        match self.reader.request.follow {
            true => index.searcher().live(self.search.clone()).boxed(),
            false => index.searcher().search(self.search.clone()).map_ok(LiveEvent::Answer).boxed(),
        }
    }

    /// Collects the search's complete first answer.
    async fn first(&self, selection: &mut Selection) -> Result<Found, Error> {
        let mut found = Found::default();
        while let Some(event) = selection.next().await {
            let LiveEvent::Answer(event) = event? else { continue };
            match event {
                SearchEvent::Remarks(notices) => found.notices = notices,
                SearchEvent::Skipped(skipped) => found.skipped = self.skipped(skipped),
                SearchEvent::Hits(hits) => {
                    for hit in hits {
                        found.pods.extend(self.pod(&hit)?);
                    }
                }
                SearchEvent::Done(summary) => {
                    bounded(&summary)?;
                    break;
                }
                SearchEvent::Facets(_) | SearchEvent::Groups(_) => {}
            }
        }
        Ok(found)
    }

    /// Skipped clusters that the request selects.
    fn skipped(&self, mut skipped: Vec<Skipped>) -> Vec<Skipped> {
        let wanted = &self.reader.request.wanted;
        skipped.retain(|skipped| !skipped.cluster.is_control_plane() && wanted.matches_cluster(&skipped.cluster));
        skipped
    }

    /// The pod of a hit, if it exists now and is selected.
    fn pod(&self, hit: &Hit) -> Result<Option<(Arc<Record>, Pod)>, Error> {
        let Object { record, body } = &hit.object;
        if hit.version_end.is_some() || !self.reader.request.wanted.matches(record) {
            return Ok(None);
        }
        Ok(Some((Arc::clone(record), Pod::read(body)?)))
    }

    /// Checks the limits of a request.
    fn allows(&self, found: &Found) -> Result<(), Error> {
        let request = &self.reader.request;
        let of = |pod: &Pod| pod.wanted(&request.wanted).filter(|c| c.state.started || !request.follow).count();
        let logs: usize = found.pods.iter().map(|(_, pod)| of(pod)).sum();
        if logs <= request.most {
            return Ok(());
        }
        let (pods, most) = (found.pods.len(), request.most);
        Err(Error::BadRequest(format!(
            "{pods} pods with {logs} logs were found, and at most {most} can be read at once; narrow the query or raise maxStreams \
             (limit {MOST_STREAMS})"
        )))
    }

    /// The selected containers of a pod.
    fn sources<'s>(&'s self, record: &'s Record, pod: &'s Pod) -> impl Iterator<Item = LogSource> {
        pod.wanted(&self.reader.request.wanted).map(|container| LogSource {
            cluster: record.key.cluster().clone(),
            namespace: record.key.namespace.to_string(),
            pod: record.key.name.to_string(),
            container: container.name.clone(),
        })
    }

    /// All logs up to now, merged.
    fn whole(&self, mut found: Found) -> BoxStream<'static, LogEvent> {
        let sources = found.pods.iter().flat_map(|(record, pod)| self.sources(record, pod));
        let sources: Vec<Arc<LogSource>> = sources.map(Arc::new).collect();
        let logs = sources.iter().map(|source| self.reader.clone().stream(Arc::clone(source))).collect();
        let log_summary = Arc::new(parking_lot::Mutex::new(LogSummary::default()));
        let counted = Arc::clone(&log_summary);
        let lines = merged(logs).filter_map(move |(number, source_event)| {
            counted.lock().count(&source_event);
            std::future::ready(sources.get(number).map(|source| LogEvent::Source(Arc::clone(source), source_event)))
        });
        let done = once(async move { LogEvent::Done(log_summary.lock().clone()) });
        found.opening().chain(lines).chain(done).boxed()
    }
}

impl Found {
    /// Events sent before any log line.
    fn opening(&mut self) -> impl futures::Stream<Item = LogEvent> + Send + 'static {
        let (notices, skipped) = (std::mem::take(&mut self.notices), self.skipped.clone());
        let notices = (!notices.is_empty()).then_some(LogEvent::Notices(notices));
        let skipped = (!skipped.is_empty()).then_some(LogEvent::Skipped(skipped));
        futures::stream::iter(notices.into_iter().chain(skipped))
    }
}

/// Refuses an incomplete answer: some of the pods must not look like all of them.
fn bounded(summary: &Summary) -> Result<(), Error> {
    if summary.incomplete {
        return Err(Error::Index(crowsnest_index::Error::Incomplete));
    }
    match summary.next {
        Some(_) => Err(Error::BadRequest(format!(
            "{} pods were found, and a request is limited to {MOST_PODS}; narrow the query",
            summary.total
        ))),
        None => Ok(()),
    }
}
